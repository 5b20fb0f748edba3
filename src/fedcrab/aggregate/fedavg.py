"""FedAvg: the mean, weighted by examples.

    G = Σ p_c · u_c,   p_c = n_c / Σ n

u_c the update of client c, n_c its number of examples.
McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.columns import combination
from fedcrab.aggregate.rule import Aggregate, participants, shares
from fedcrab.types import Vector


def fedavg() -> Aggregate:
    """The weighted mean. No resistance: one client moves it anywhere."""

    def aggregate(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        participants(matrix, weights)
        return combination(shares(weights), matrix)

    return aggregate
