"""The coordinate-wise median.

    G[k] = median of u_c[k] over clients c; of an even number, the mean of the middle two

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
Weights are not used: the numbers of examples are the clients' own claims.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.columns import sorted_stretches
from fedcrab.aggregate.rule import Aggregate, participants
from fedcrab.types import Vector


def median() -> Aggregate:
    """The coordinate-wise median: holds while fewer than half of the clients are malicious."""

    def aggregate(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        n = participants(matrix, weights)
        result = np.empty(matrix.shape[1], np.float32)
        for place, ascending in sorted_stretches(matrix):
            middle = ascending[:, (n - 1) // 2 : n // 2 + 1]
            result[place] = middle.mean(axis=1, dtype=np.float64)
        return result

    return aggregate
