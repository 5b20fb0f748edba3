"""The coordinate-wise trimmed mean.

    G[k] = mean of what is left of u_c[k] over clients c without the `trim` smallest and the `trim` largest

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
Weights are not used: the numbers of examples are the clients' own claims.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.columns import sorted_stretches
from fedcrab.aggregate.rule import Aggregate, participants
from fedcrab.errors import ConfigError
from fedcrab.types import Vector


def trimmed_mean(*, trim: int) -> Aggregate:
    """The mean without extremes: ``trim`` 0 is the plain mean, half of the clients nearly the median."""
    if trim < 0:
        raise ConfigError(f"trim must be 0 or more, got {trim}")

    def aggregate(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        n = participants(matrix, weights)
        if 2 * trim >= n:
            raise ConfigError(f"Cannot trim 2*trim >= n. Got trim={trim}, n={n}")
        result = np.empty(matrix.shape[1], np.float32)
        for place, ascending in sorted_stretches(matrix):
            result[place] = ascending[:, trim : n - trim].mean(axis=1, dtype=np.float64)
        return result

    return aggregate
