"""Medians and the trimmed mean. The coordinate-wise ones do not use weights.

The reason: the numbers of examples are the clients' own claims.
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
    """Return the geometric median, computed by the smoothed Weiszfeld iteration.

        G = argmin_v Σ p_c · ‖v − u_c‖
        a_c ∝ p_c / max(ν, ‖v − u_c‖),  v ← Σ a_c · u_c,  starting at the weighted mean

    ν is ``smoothing``: below this distance a client's pull does not grow. The iteration stops after
    ``iterations``, or when no coefficient changes by more than ``tolerance``. Raises ``ConfigError`` if a
    setting is out of range. Breaks down at half of the *weight*, not half of the clients.

    Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", IEEE TSP 2022. Departs from it:
    it iterates on the coefficients a, not on v. Every v is Σ a_c·u_c with Σ a_c = 1, so with the squared
    distances D of all pairs, ‖v − u_c‖² = (D·a)_c − ½·aᵀ·D·a, and a step costs n² instead of n·d.
    """
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
    """Return the coefficients after one Weiszfeld step."""
    reach = squared @ a
    distance = np.sqrt(np.maximum(reach - 0.5 * (a @ reach), 0.0))
    pull = p / np.maximum(distance, smoothing)
    return np.asarray(pull / pull.sum(), np.float64)


def median() -> Aggregate:
    """Return the coordinate-wise median, which is robust while fewer than half of the clients are malicious.

        G[k] = median of u_c[k] over clients c; for an even number, the mean of the middle two

    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
    """

    def aggregate(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        n = participants(matrix, weights)
        result = np.empty(matrix.shape[1], np.float32)
        for place, ascending in sorted_stretches(matrix):
            middle = ascending[:, (n - 1) // 2 : n // 2 + 1]
            result[place] = middle.mean(axis=1, dtype=np.float64)
        return result

    return aggregate


def trimmed_mean(*, trim: int) -> Aggregate:
    """Return the coordinate-wise mean without the ``trim`` smallest and the ``trim`` largest values.

    0 is the plain mean; half of the clients is almost the median. Raises ``ConfigError`` if it is negative;
    the rule itself raises it if 2·trim ≥ n.
    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
    """
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
