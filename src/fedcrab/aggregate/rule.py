"""What an aggregation rule is, and the checks that all of them share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.types import Vector

Aggregate = Callable[[NDArray[np.float32], NDArray[np.float64]], Vector]
"""(updates, one row a client; examples per client) -> G_t. Rows are finite: the server leaves others out."""


def participants(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> int:
    """n, the number of updates, after a check that there is something to aggregate."""
    if matrix.ndim != 2 or np.shape(weights) != (len(matrix),):
        raise ConfigError(
            "a rule takes one row and one weight a client, "
            f"got updates of shape {matrix.shape}, weights of shape {np.shape(weights)}"
        )
    if len(matrix) == 0:
        raise ConfigError("a rule needs at least one update, got none; skip the round instead")
    return len(matrix)


def shares(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """p_c = n_c / Σ n."""
    total = float(np.sum(weights, dtype=np.float64))
    if not (np.isfinite(total) and total > 0 and np.min(weights) >= 0):
        raise ConfigError(
            f"weights must be finite, 0 or more and not all 0, got {np.asarray(weights).tolist()}"
        )
    return np.asarray(weights, np.float64) / total
