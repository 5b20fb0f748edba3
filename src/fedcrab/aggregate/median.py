"""The coordinate-wise median.

    G[k] = median of u_c[k] over clients c; of an even number, the mean of the middle two

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
Weights are not used: the numbers of examples are the clients' own claims.

The geometric median, by the smoothed Weiszfeld iteration.

    G = argmin_v Σ p_c · ‖v − u_c‖;   a_c ∝ p_c / max(ν, ‖v − u_c‖),  v ← Σ a_c · u_c,  from the weighted mean

ν (`smoothing`) is the distance below which a client pulls no harder.
Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", IEEE TSP 2022.
Departs from it: it iterates on the coefficients a, not on v. Every v is Σ a_c·u_c with Σ a_c = 1, so with D
the squared distances of all pairs,  ‖v − u_c‖² = (D·a)_c − ½·aᵀ·D·a,  and a step costs n² instead of n·d.
Breaks down at half of the *weight*, not half of the clients.

The coordinate-wise trimmed mean.

    G[k] = mean of what is left of u_c[k] over clients c without the `trim` smallest and the `trim` largest

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
Weights are not used: the numbers of examples are the clients' own claims.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.mean import Aggregate, participants, shares
from fedcrab.errors import ConfigError
from fedcrab.types import Vector
from fedcrab.vectors import combination, sorted_stretches, squared_distances


def geometric_median(
    *, smoothing: float = 1e-6, iterations: int = 1000, tolerance: float = 1e-10
) -> Aggregate:
    """Return the geometric median; it stops when no coefficient changes by more than ``tolerance``."""
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


def median() -> Aggregate:
    """Return the coordinate-wise median, robust while fewer than half of the clients are malicious."""

    def aggregate(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        n = participants(matrix, weights)
        result = np.empty(matrix.shape[1], np.float32)
        for place, ascending in sorted_stretches(matrix):
            middle = ascending[:, (n - 1) // 2 : n // 2 + 1]
            result[place] = middle.mean(axis=1, dtype=np.float64)
        return result

    return aggregate


def trimmed_mean(*, trim: int) -> Aggregate:
    """Return the trimmed mean: ``trim`` 0 is the plain mean, half of the clients is nearly the median."""
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
