"""Recovery methods, one file a method: generators of steps over any fleet.

Each is called ``method(plan, fleet, *, aggregate=None, epochs=None, after=None, ...)``. None asks a malicious
client, changes the history or sees test data.
"""

from fedcrab.recover.crab import CRAB_PRESETS, crab
from fedcrab.recover.federaser import federaser
from fedcrab.recover.fedrecover import fedrecover
from fedcrab.recover.progress import Progress, resumable
from fedcrab.recover.retrain import retrain
from fedcrab.recover.step import Capped, Pair, Step

__all__ = [
    "CRAB_PRESETS",
    "Capped",
    "Pair",
    "Progress",
    "Step",
    "crab",
    "federaser",
    "fedrecover",
    "resumable",
    "retrain",
]
