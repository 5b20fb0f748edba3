"""Recovery methods, one file per method. Each is a generator of steps over any fleet.

Each is called ``method(plan, fleet, *, aggregate=None, epochs=None, after=None, ...)``. No method asks a
malicious client, changes the history or uses test data. Call the package itself to run a method and write its
result to a folder (:func:`fedcrab.recover.run.recover`).
"""

from fedcrab.extras import can_be_called
from fedcrab.recover.answers import AnswerFolder, Answers, RecordedFleet, ask_at
from fedcrab.recover.crab import CRAB_PRESETS, crab
from fedcrab.recover.federaser import federaser
from fedcrab.recover.fedrecover import fedrecover
from fedcrab.recover.finetune import finetune
from fedcrab.recover.replay import replay
from fedcrab.recover.retrain import retrain, retrain_few
from fedcrab.recover.run import Recovery, recover
from fedcrab.recover.saved_steps import SavedSteps, resumable
from fedcrab.recover.step import Capped, Pair, ReplayState, Step
from fedcrab.recover.subtract_and_distil import Distiller, subtract_and_distil

Progress = SavedSteps  # its earlier name
can_be_called(__name__, recover)  # fedcrab.recover(history, fleet, malicious=...)

__all__ = [
    "CRAB_PRESETS",
    "AnswerFolder",
    "Answers",
    "Capped",
    "Distiller",
    "Pair",
    "Progress",
    "RecordedFleet",
    "Recovery",
    "ReplayState",
    "SavedSteps",
    "Step",
    "ask_at",
    "crab",
    "federaser",
    "fedrecover",
    "finetune",
    "replay",
    "resumable",
    "retrain",
    "retrain_few",
    "subtract_and_distil",
]
