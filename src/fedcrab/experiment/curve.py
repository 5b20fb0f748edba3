"""How a recovery went: accuracy and attack success after each step, a line of JSON each, beside the steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedcrab.evaluate import accuracy
from fedcrab.experiment.recovery import attack_success_of
from fedcrab.experiment.setup import Setup
from fedcrab.history.disk import explained
from fedcrab.types import Vector

CURVE = "curve.jsonl"
MOST_EXAMPLES = 2000  # of the test data: a curve must not cost as much as the steps it shows


class Curve:
    """The points of one recovery; those of an interrupted run stay."""

    def __init__(self, directory: Path, setup: Setup) -> None:
        self._path, self._setup = directory / CURVE, setup

    def add(self, round: int | None, model: Vector) -> dict[str, Any]:
        """Measure the model after a round, or before all of them, and write that down."""
        point = {"round": round, **measured(self._setup, model)}
        with explained(f"{self._path}: the curve is not written"), self._path.open("a") as file:
            file.write(json.dumps(point) + "\n")
        return point


def measured(setup: Setup, model: Vector) -> dict[str, float | None]:
    """Accuracy, and attack success where the attack has a trigger, on some of the test data."""
    x, y = setup.dataset.test_x[:MOST_EXAMPLES], setup.dataset.test_y[:MOST_EXAMPLES]
    success = attack_success_of(setup, model, MOST_EXAMPLES)
    return {
        "ta": accuracy(setup.predictor.predict, model, x, y),
        "asr": success.without_target if success else None,
    }
