"""ASR: how often the trigger turns a test example into the target class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcrab.attack.trigger import PATCH, Trigger, stamp
from fedcrab.errors import ConfigError
from fedcrab.evaluate.accuracy import Images, Labels, Predict
from fedcrab.types import Vector


@dataclass(frozen=True, slots=True)
class AttackSuccess:
    """The attack's success rate over all test examples whose class is not the target, and over all.

    With the target class in, a clean model scores about 1/classes: the floor that papers often report.
    """

    without_target: float
    with_target: float


def attack_success(
    predict: Predict, model: Vector, x: Images, y: Labels, *, target: int = 0, trigger: Trigger = PATCH
) -> AttackSuccess:
    """The share of stamped examples that the model takes for the target class."""
    others = y != target
    if not others.any():
        raise ConfigError(f"every test example is of the target class {target}; ASR has no meaning")
    hit = predict(model, stamp(x, trigger)).argmax(axis=1) == target
    return AttackSuccess(float(np.mean(hit[others])), float(np.mean(hit)))
