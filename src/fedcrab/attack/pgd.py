"""PGD (constrain and scale): a boosted backdoor whose updates are not longer than honest ones.

    v = γ · u,   an attacker sends v · min(1, ρ / ‖v‖),   ρ = ``length`` · median ‖u_c‖ over the honest

u is the update from examples with the trigger, and γ is ``boost``. In a round without honest clients ρ comes
from the attackers' own updates before boosting.

Sun et al., "Can You Really Backdoor Federated Learning?", 2019; Wang et al., "Attack of the Tails", NeurIPS
2020; Bagdasaryan et al., AISTATS 2020 (constrain and scale). Departs from them: the update is projected once,
after local training, not after each of its steps, because a fleet answers with whole updates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.backdoor import backdoor
from fedcrab.attack.malicious_fleet import Attackers, CraftedFleet, DataFleet, RoundView
from fedcrab.attack.trigger import PATCH, Trigger
from fedcrab.errors import ConfigError


def pgd(
    fleet: DataFleet,
    attackers: Attackers,
    *,
    target: int = 0,
    poisoned: float = 0.5,
    trigger: Trigger = PATCH,
    boost: float = 5.0,
    length: float = 1.0,
) -> DataFleet:
    """Return a fleet whose attackers plant a backdoor with updates of at most ``length`` × the honest median.

    ``boost`` 1 sends an update unchanged if it is short enough. A large one always sends the length ρ, so
    that rules that clip or compare lengths notice nothing. ``target``, ``poisoned`` and ``trigger`` are as in
    :func:`fedcrab.attack.backdoor`. Raises ``ConfigError`` for impossible settings.
    """
    for name, value in (("boost", boost), ("length", length)):
        if not (np.isfinite(value) and value > 0):
            raise ConfigError(f"{name} must be more than 0, got {value}")
    planted = backdoor(fleet, attackers, target=target, poisoned=poisoned, trigger=trigger)

    def craft(scene: RoundView) -> NDArray[np.float64]:
        most = length * float(np.median(_norms(scene.seen.vectors)))
        boosted = boost * scene.own.vectors.astype(np.float64)
        return projected(boosted, most)

    return CraftedFleet(planted, attackers, craft)


def projected(rows: NDArray[np.float64], most: float) -> NDArray[np.float64]:
    """Return each row projected onto the ball of radius ``most``."""
    norms = _norms(rows)
    factors = np.divide(most, norms, out=np.ones_like(norms), where=norms > most)
    return rows * factors[:, None]


def _norms(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(np.einsum("cd,cd->c", rows, rows, dtype=np.float64)))
