"""A Little Is Enough: as far from the mean as honest clients scatter anyway.

    sends μ − z·σ,   z = Φ⁻¹((n − m − q) / (n − m)),   q = ⌊n/2 + 1⌋ − m

μ, σ the coordinate-wise mean and deviation (over n − m, not n − m − 1) of the honest updates; n participants,
m of them attacking; q the honest clients that must lie further out for the attackers to sit in the majority.
Baruch, Baruch, Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS 2019.
Departs from it: z is infinite when attackers are the majority (q ≤ 0) and minus infinity when all honest
clients would have to be further out; the share is kept half a client away from 0 and 1.
In a round without honest clients the attackers' own updates stand for them.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.attackers import Attackers
from fedcrab.attack.crafted import CraftedFleet, Scene
from fedcrab.attack.moments import deviation, mean
from fedcrab.errors import ConfigError
from fedcrab.types import Fleet


def lie(fleet: Fleet, attackers: Attackers, *, z: float | None = None) -> CraftedFleet:
    """The fleet whose attackers send μ − z·σ; ``z`` None computes it from the round's numbers of clients."""
    if z is not None and not np.isfinite(z):
        raise ConfigError(f"z must be finite, or None to compute it, got {z}")

    def craft(scene: Scene) -> NDArray[np.float64]:
        honest, attacking = len(scene.seen.clients), len(scene.own.clients)
        factor = little(honest, attacking) if z is None else z
        return mean(scene.seen) - factor * deviation(scene.seen)

    return CraftedFleet(fleet, attackers, craft)


def little(honest: int, attacking: int) -> float:
    """The z of n − m honest and m attacking participants."""
    supporters = (honest + attacking) // 2 + 1 - attacking
    share = (honest - supporters) / honest
    return NormalDist().inv_cdf(min(max(share, 0.5 / honest), 1 - 0.5 / honest))
