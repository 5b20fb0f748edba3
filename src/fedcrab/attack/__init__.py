"""Attacks: each factory wraps a fleet and returns a fleet in which some clients are malicious.

A factory takes the fleet, the :class:`Attackers` (who, and in which rounds) and keyword-only settings. An
attacker that is not asked in a round, or that does not act in it, answers honestly.
"""

from fedcrab.attack.backdoor import backdoor, boosted, dba
from fedcrab.attack.evade import evade
from fedcrab.attack.fang import fang_krum, fang_trim
from fedcrab.attack.malicious_fleet import (
    Attackers,
    Craft,
    CraftedFleet,
    DataFleet,
    Examples,
    PoisonedDataFleet,
    RoundView,
    draw_attackers,
)
from fedcrab.attack.min_max import min_max, min_sum
from fedcrab.attack.neurotoxin import neurotoxin
from fedcrab.attack.pgd import pgd
from fedcrab.attack.trigger import Trigger, stamp
from fedcrab.attack.untargeted import ipm, label_flip, lie, noise_trim, sign_flip

Scene = RoundView  # its earlier name

__all__ = [
    "Attackers",
    "Craft",
    "CraftedFleet",
    "DataFleet",
    "Examples",
    "PoisonedDataFleet",
    "RoundView",
    "Scene",
    "Trigger",
    "backdoor",
    "boosted",
    "dba",
    "draw_attackers",
    "evade",
    "fang_krum",
    "fang_trim",
    "ipm",
    "label_flip",
    "lie",
    "min_max",
    "min_sum",
    "neurotoxin",
    "noise_trim",
    "pgd",
    "sign_flip",
    "stamp",
]
