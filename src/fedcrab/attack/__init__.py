"""Attacks: malicious clients as a fleet around a fleet, one file an attack.

Each factory takes the fleet, the ``Attackers`` and keyword-only hyper-parameters, and gives a fleet.
"""

from fedcrab.attack.attackers import Attackers, draw_attackers
from fedcrab.attack.backdoor import backdoor
from fedcrab.attack.boost import boosted
from fedcrab.attack.crafted import Craft, CraftedFleet, Scene
from fedcrab.attack.data_fleet import DataFleet, Examples, PoisonedDataFleet
from fedcrab.attack.dba import dba
from fedcrab.attack.evade import evade
from fedcrab.attack.fang_krum import fang_krum
from fedcrab.attack.fang_trim import fang_trim
from fedcrab.attack.ipm import ipm
from fedcrab.attack.label_flip import label_flip
from fedcrab.attack.lie import lie
from fedcrab.attack.min_max import min_max
from fedcrab.attack.min_sum import min_sum
from fedcrab.attack.noise_trim import noise_trim
from fedcrab.attack.sign_flip import sign_flip
from fedcrab.attack.trigger import Trigger, stamp

__all__ = [
    "Attackers",
    "Craft",
    "CraftedFleet",
    "DataFleet",
    "Examples",
    "PoisonedDataFleet",
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
    "noise_trim",
    "sign_flip",
    "stamp",
]
