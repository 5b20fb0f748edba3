"""Multi-Krum: the mean of the updates that Krum likes best.

    G = mean of u_c over the `keep` lowest scores of Krum

Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017.
A plain mean, as published: the numbers of examples are the clients' own claims.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.columns import combination
from fedcrab.aggregate.krum import check_byzantine, ranking
from fedcrab.aggregate.rule import Aggregate, participants
from fedcrab.errors import ConfigError
from fedcrab.types import Vector


def multi_krum(*, byzantine: int, keep: int | None = None) -> Aggregate:
    """The mean of ``keep`` updates: 1 is Krum, None all but ``byzantine``."""
    check_byzantine(byzantine)
    if keep is not None and keep < 1:
        raise ConfigError(f"keep must be 1 or more, or None for all but byzantine, got {keep}")

    def aggregate(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        n = participants(matrix, weights)
        kept = n - byzantine if keep is None else keep
        if kept + byzantine > n:
            raise ConfigError(f"Cannot keep + byzantine > n. Got keep={kept}, byzantine={byzantine}, n={n}")
        coefficients = np.zeros(n)
        coefficients[ranking(matrix, byzantine)[:kept]] = 1 / kept
        return combination(coefficients, matrix)

    return aggregate
