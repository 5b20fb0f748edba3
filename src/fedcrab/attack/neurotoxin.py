"""Neurotoxin: a backdoor in the coordinates that honest updates change least, so that nothing overwrites it.

    an attacker sends γ · m ⊙ u,   m_k = 1 for the ``coordinates`` (a share) with the smallest |μ_k|, else 0

u is the update from examples with the trigger, μ the mean of the honest updates, and γ is ``boost``. In a
round without honest clients μ is the mean of the attackers' own updates.

Zhang et al., "Neurotoxin: Durable Backdoors in Federated Learning", ICML 2022. Departs from it: μ is from the
same round (full knowledge), not the previous aggregate; and the update is masked once, after local training,
not after each of its steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.backdoor import backdoor
from fedcrab.attack.malicious_fleet import Attackers, CraftedFleet, DataFleet, RoundView, mean
from fedcrab.attack.trigger import PATCH, Trigger
from fedcrab.errors import ConfigError


def neurotoxin(
    fleet: DataFleet,
    attackers: Attackers,
    *,
    target: int = 0,
    poisoned: float = 0.5,
    trigger: Trigger = PATCH,
    boost: float = 1.0,
    coordinates: float = 0.95,
) -> DataFleet:
    """Return a fleet whose attackers plant a backdoor in coordinates that honest clients hardly change.

    ``coordinates`` is the share of coordinates used: 1 is a plain backdoor; with fewer it is weaker, and
    lasts longer after the attack ends. ``boost`` multiplies the update; ``target``, ``poisoned`` and
    ``trigger`` are as in :func:`fedcrab.attack.backdoor`. Raises ``ConfigError`` for impossible settings.
    """
    if not (np.isfinite(boost) and boost > 0):
        raise ConfigError(f"boost must be more than 0, got {boost}")
    if not 0 < coordinates <= 1:
        raise ConfigError(f"coordinates must be more than 0 and at most 1, got {coordinates}")
    planted = backdoor(fleet, attackers, target=target, poisoned=poisoned, trigger=trigger)

    def craft(scene: RoundView) -> NDArray[np.float64]:
        mask = least_used(mean(scene.seen), coordinates)
        return boost * np.where(mask, scene.own.vectors, 0.0).astype(np.float64)

    return CraftedFleet(planted, attackers, craft)


def least_used(honest: NDArray[np.float64], coordinates: float) -> NDArray[np.bool_]:
    """Return a mask of the share of coordinates that move least (rounded half to even; ties: the first)."""
    order = np.argsort(np.abs(honest), kind="stable")
    mask = np.zeros(len(honest), bool)
    mask[order[: round(coordinates * len(honest))]] = True
    return mask
