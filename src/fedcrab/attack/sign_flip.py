"""Sign flipping: an attacker sends its own update backwards.

    sends −u

Li et al., "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning", AAAI 2019.
Needs no honest client: a round without any is attacked the same.
"""

from __future__ import annotations

from fedcrab.attack.attackers import Attackers
from fedcrab.attack.crafted import CraftedFleet
from fedcrab.types import Fleet


def sign_flip(fleet: Fleet, attackers: Attackers) -> CraftedFleet:
    """The fleet whose attackers send their updates backwards."""
    return CraftedFleet(fleet, attackers, lambda scene: -scene.own.vectors)
