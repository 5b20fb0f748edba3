"""TA: accuracy on the clean test set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.types import Vector

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
Predict = Callable[[Vector, Images], NDArray[np.float32]]
"""(flat model, examples) -> probabilities of the classes, one row an example."""


def accuracy(predict: Predict, model: Vector, x: Images, y: Labels) -> float:
    """The share of examples whose likeliest class is their label."""
    if not len(y):
        raise ConfigError("accuracy needs at least one test example")
    return float(np.mean(predict(model, x).argmax(axis=1) == y))
