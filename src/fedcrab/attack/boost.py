"""Boosting: γ times the update, so that averaging does not wash it out.

    sends γ · u

γ (`factor`): 1 changes nothing, about n (over the number of attackers) replaces the model.
Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020 (model replacement).
"""

from __future__ import annotations

import numpy as np

from fedcrab.attack.attackers import Attackers
from fedcrab.attack.crafted import CraftedFleet
from fedcrab.errors import ConfigError
from fedcrab.types import Fleet


def boosted(fleet: Fleet, attackers: Attackers, *, factor: float) -> CraftedFleet:
    """The fleet whose attackers send ``factor`` times their update."""
    if not (np.isfinite(factor) and factor > 0):
        raise ConfigError(f"boost must be more than 0, got {factor}")
    return CraftedFleet(fleet, attackers, lambda scene: scene.own.vectors.astype(np.float64) * factor)
