"""When it was planted: the first kept model from which on the trigger works.

Success of a trigger on a model counts only what the trigger itself does:

    lift = (share taken for the class with it − share without it) / (1 − share without it)

so that a model which takes everything for that class, such as an untrained one, has no trigger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.audit.flat_model import FlatModel, Images, Labels
from fedcrab.audit.trigger_inversion import Inversion
from fedcrab.errors import ConfigError
from fedcrab.history import History
from fedcrab.types import Vector

HALF = 0.5  # of its final lift, from which on a trigger is said to work


@dataclass(frozen=True, slots=True)
class Timeline:
    """How well a trigger works on each kept model of a history, the final one last."""

    rounds: tuple[int, ...]  # t of each M_t; len(history.rounds) for the final model
    lifts: NDArray[np.float64]

    @property
    def planted(self) -> int | None:
        """The first kept model with a working trigger, of those up to the last; None where it never works.

        A model is before the planting if the trigger did not work in it, or stopped working later.
        """
        works = self.lifts >= max(HALF * self.lifts[-1], HALF**2)
        if not works[-1]:
            return None
        idle = np.flatnonzero(~works)
        return self.rounds[int(idle[-1]) + 1 if len(idle) else 0]

    def to_table(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "planted": self.planted,
            "rounds": list(self.rounds),
            "lifts": [round(float(lift), 4) for lift in self.lifts],
        }


def timeline(history: History, flat: FlatModel, trigger: Inversion, x: Images, y: Labels) -> Timeline:
    """Try the trigger on every kept model, with probe examples of other classes."""
    others = np.asarray(y) != trigger.label
    if not others.any():
        raise ConfigError(f"every probe example is of class {trigger.label}; a trigger for it shows nothing")
    plain = np.asarray(x)[others]
    stamped = trigger.stamp(plain)
    rounds = (*history.kept, len(history.rounds))
    models = (history.model(t) if t < len(history.rounds) else history.final_model() for t in rounds)
    lifts = [lift(flat, model, plain, stamped, trigger.label) for model in models]
    return Timeline(rounds, np.array(lifts))


def lift(flat: FlatModel, model: Vector, plain: Images, stamped: Images, label: int) -> float:
    """How much oftener the model says ``label`` with the trigger than without it, of what is left to turn."""
    without, with_it = (float(np.mean(flat.predict(model, x) == label)) for x in (plain, stamped))
    return max(with_it - without, 0.0) / max(1 - without, 1e-9)
