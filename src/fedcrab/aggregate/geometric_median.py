"""The geometric median, by the smoothed Weiszfeld iteration.

    G = argmin_v Σ p_c · ‖v − u_c‖;   a_c ∝ p_c / max(ν, ‖v − u_c‖),  v ← Σ a_c · u_c,  from the weighted mean

ν (`smoothing`) is the distance below which a client pulls no harder.
Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", IEEE TSP 2022.
Departs from it: it iterates on the coefficients a, not on v. Every v is Σ a_c·u_c with Σ a_c = 1, so with D
the squared distances of all pairs,  ‖v − u_c‖² = (D·a)_c − ½·aᵀ·D·a,  and a step costs n² instead of n·d.
Breaks down at half of the *weight*, not half of the clients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.columns import combination, squared_distances
from fedcrab.aggregate.rule import Aggregate, participants, shares
from fedcrab.errors import ConfigError
from fedcrab.types import Vector


def geometric_median(
    *, smoothing: float = 1e-6, iterations: int = 1000, tolerance: float = 1e-10
) -> Aggregate:
    """The point of the least weighted distance; stops when no coefficient moves more than ``tolerance``."""
    if not (np.isfinite(smoothing) and smoothing > 0):
        raise ConfigError(f"smoothing must be more than 0, got {smoothing}")
    if iterations < 1:
        raise ConfigError(f"iterations must be 1 or more, got {iterations}")
    if not tolerance >= 0:
        raise ConfigError(f"tolerance must be 0 or more, got {tolerance}")

    def aggregate(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        participants(matrix, weights)
        p = shares(weights)
        squared, a = squared_distances(matrix), p
        for _ in range(iterations):
            before, a = a, _step(squared, p, a, smoothing)
            if np.max(np.abs(a - before)) <= tolerance:
                break
        return combination(a, matrix)

    return aggregate


def _step(
    squared: NDArray[np.float64], p: NDArray[np.float64], a: NDArray[np.float64], smoothing: float
) -> NDArray[np.float64]:
    """One Weiszfeld step: the next coefficients."""
    reach = squared @ a
    distance = np.sqrt(np.maximum(reach - 0.5 * (a @ reach), 0.0))
    pull = p / np.maximum(distance, smoothing)
    return np.asarray(pull / pull.sum(), np.float64)
