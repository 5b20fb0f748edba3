"""Weighted means, the checks that all rules share, and the treatment of buffers.

A rule applies only to trained coordinates. Buffers are averaged by examples, as Flower and FLARE do:
BatchNorm's running statistics, and its counter, whose mean is rounded. Robust rules are not meant for either.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.server_rule import ServerRule
from fedcrab.errors import ConfigError
from fedcrab.types import Layout, Vector
from fedcrab.vectors import combination, squared_norms

Aggregate = Callable[[NDArray[np.float32], NDArray[np.float64]], Vector]
"""(updates, one row per client; examples per client) -> G_t. All rows are finite: the server drops others."""


def participants(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> int:
    """Return the number of updates; raises ``ConfigError`` if there is nothing to aggregate."""
    if matrix.ndim != 2 or np.shape(weights) != (len(matrix),):
        raise ConfigError(
            "a rule takes one row and one weight per client, "
            f"got updates of shape {matrix.shape}, weights of shape {np.shape(weights)}"
        )
    if len(matrix) == 0:
        raise ConfigError("a rule needs at least one update, got none; skip the round instead")
    return len(matrix)


def shares(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return p_c = n_c / Σ n; raise ``ConfigError`` if the weights do not allow this."""
    total = float(np.sum(weights, dtype=np.float64))
    if not (np.isfinite(total) and total > 0 and np.min(weights) >= 0):
        raise ConfigError(
            f"weights must be finite, 0 or more and not all 0, got {np.asarray(weights).tolist()}"
        )
    return np.asarray(weights, np.float64) / total


def with_buffers(rule: Aggregate, layout: Layout) -> Aggregate:
    """Return a rule that applies ``rule`` to trained coordinates and averages buffers as described above.

    A server's own rule is returned unchanged: it sees whole models and treats buffers itself.
    """
    if isinstance(rule, ServerRule) or all(f.trained for f in layout.fields):
        return rule
    trained = np.concatenate([np.arange(part.start, part.stop) for part in layout.trained()])

    def aggregate(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        result = np.zeros(matrix.shape[1], np.float32)
        for f, place in zip(layout.fields, layout.slices().values(), strict=True):
            if not f.trained:
                averaged = combination(shares(weights), matrix[:, place])
                result[place] = np.rint(averaged) if f.integer else averaged
        result[trained] = rule(matrix[:, trained], weights)
        return result

    return aggregate


def clipped_mean(*, limit: float) -> Aggregate:
    """Return the weighted mean of updates clipped to length ``limit`` (norm bounding).

        G = Σ p_c · u_c · min(1, limit / ‖u_c‖),   p_c = n_c / Σ n

    An infinite limit gives fedavg. Raises ``ConfigError`` unless the limit is more than 0.
    Sun et al., "Can You Really Backdoor Federated Learning?", 2019.
    """
    if not limit > 0:
        raise ConfigError(f"limit must be more than 0, got {limit}")

    def aggregate(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        participants(matrix, weights)
        norms = np.sqrt(squared_norms(matrix))
        factors = np.divide(limit, norms, out=np.ones_like(norms), where=norms > limit)
        return combination(shares(weights) * factors, matrix)

    return aggregate


def fedavg() -> Aggregate:
    """Return FedAvg: the mean, weighted by examples. It is not robust: one client can move it anywhere.

        G = Σ p_c · u_c,   p_c = n_c / Σ n

    u_c is the update of client c, n_c its number of examples.
    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    """

    def aggregate(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        participants(matrix, weights)
        return combination(shares(weights), matrix)

    return aggregate
