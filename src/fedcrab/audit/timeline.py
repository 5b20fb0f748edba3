"""When a trigger was planted: the change from kept models in which it fails to those in which it works.

The lift of a trigger on a model is its own effect:

    lift = (share of the class with it − share without it) / (1 − share without it)

Here the share is that of the examples that the model assigns to the trigger's class. So a model that assigns
everything to that class, such as an untrained one, has a lift of 0.
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

HALF = 0.5  # of its final lift; from this lift on, a trigger works


@dataclass(frozen=True, slots=True)
class Timeline:
    """How well a trigger works on each kept model of a history, the final one last."""

    rounds: tuple[int, ...]  # t of each M_t; len(history.rounds) for the final model
    lifts: NDArray[np.float64]

    @property
    def planted(self) -> int | None:
        """The first kept model with the trigger; None if it does not work in the last one.

        It is the model that makes the fewest exceptions: models before it in which the trigger works, and
        later ones in which it fails. The earliest of several. So one model in which the trigger fails, as
        happens with uneven data, does not hide that it was there before.
        """
        works = self.lifts >= max(HALF * self.lifts[-1], HALF**2)
        return self.rounds[change(works)] if works[-1] else None

    def to_table(self) -> dict[str, Any]:
        """Return the timeline as plain values, for JSON."""
        return {
            "planted": self.planted,
            "rounds": list(self.rounds),
            "lifts": [round(float(lift), 4) for lift in self.lifts],
        }


def change(works: NDArray[np.bool_]) -> int:
    """Return the i with the fewest exceptions from "False before i, True from i on"; the first of several."""
    before = np.concatenate([[0], np.cumsum(works)])
    after = np.concatenate([np.cumsum(~works[::-1])[::-1], [0]])
    return int(np.argmin(before + after))


def timeline(history: History, flat: FlatModel, trigger: Inversion, x: Images, y: Labels) -> Timeline:
    """Return the lift of the trigger on every kept model.

    ``x`` and ``y`` are probe examples. Raises ConfigError if all of them are of the trigger's class.
    """
    others = np.asarray(y) != trigger.label
    if not others.any():
        raise ConfigError(
            f"every probe example is of class {trigger.label}; testing its trigger needs other classes"
        )
    plain = np.asarray(x)[others]
    stamped = trigger.stamp(plain)
    rounds = (*history.kept, len(history.rounds))
    models = (history.model(t) if t < len(history.rounds) else history.final_model() for t in rounds)
    lifts = [lift(flat, model, plain, stamped, trigger.label) for model in models]
    return Timeline(rounds, np.array(lifts))


def lift(flat: FlatModel, model: Vector, plain: Images, stamped: Images, label: int) -> float:
    """Return (share of ``label`` with the trigger − share without it) / (1 − share without it), 0 or more."""
    without, with_it = (float(np.mean(flat.predict(model, x) == label)) for x in (plain, stamped))
    return max(with_it - without, 0.0) / max(1 - without, 1e-9)
