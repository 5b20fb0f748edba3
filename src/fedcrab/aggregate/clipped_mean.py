"""The norm-clipped mean.

    G = Σ p_c · u_c · min(1, limit / ‖u_c‖),   p_c = n_c / Σ n

Sun et al., "Can You Really Backdoor Federated Learning?", 2019 (norm bounding).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.columns import combination, squared_norms
from fedcrab.aggregate.rule import Aggregate, participants, shares
from fedcrab.errors import ConfigError
from fedcrab.types import Vector


def clipped_mean(*, limit: float) -> Aggregate:
    """The weighted mean of updates cut to ``limit``: at infinity fedavg, towards 0 only directions count."""
    if not limit > 0:
        raise ConfigError(f"limit must be more than 0, got {limit}")

    def aggregate(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        participants(matrix, weights)
        norms = np.sqrt(squared_norms(matrix))
        factors = np.divide(limit, norms, out=np.ones_like(norms), where=norms > limit)
        return combination(shares(weights) * factors, matrix)

    return aggregate
