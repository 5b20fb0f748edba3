"""Inner-product manipulation: the honest mean backwards, scaled.

    sends −ε·μ

μ the mean of the honest updates, ε `scale`: small slips past distance-based rules, more than (n − m)/m turns
the mean around.
Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI
2019.
In a round without honest clients μ is the mean of the attackers' own updates.
"""

from __future__ import annotations

import numpy as np

from fedcrab.attack.attackers import Attackers
from fedcrab.attack.crafted import CraftedFleet
from fedcrab.attack.moments import mean
from fedcrab.errors import ConfigError
from fedcrab.types import Fleet


def ipm(fleet: Fleet, attackers: Attackers, *, scale: float = 0.5) -> CraftedFleet:
    """The fleet whose attackers send −ε·μ."""
    if not (np.isfinite(scale) and scale > 0):
        raise ConfigError(f"scale must be more than 0, got {scale}")
    return CraftedFleet(fleet, attackers, lambda scene: -scale * mean(scene.seen))
