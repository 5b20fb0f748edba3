"""Krum and multi-Krum: the update, or the mean of the updates, nearest to their neighbours.

    score(c) = Σ ‖u_c − u_c'‖² over the n − f − 2 nearest others c'

n is the number of updates; at most f (``byzantine``) of them are malicious, with 2f + 2 < n.

Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017.
Departs from it: with f = 0 there is nothing to tolerate, so one and two updates are accepted too. Of two
equal scores, the row wins that is smaller at the first coordinate where they differ, so that the order of
clients does not matter. Weights are not used, because the numbers of examples are the clients' own claims.
"""

from __future__ import annotations

from functools import cmp_to_key

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.mean import Aggregate, participants
from fedcrab.errors import ConfigError
from fedcrab.types import Vector
from fedcrab.vectors import combination, squared_distances


def krum(*, byzantine: int) -> Aggregate:
    """Return Krum: the update with the lowest score, unchanged.

    ``byzantine`` is f. Raises ``ConfigError`` if it is negative; the rule itself raises it if 2f + 2 ≥ n.
    """
    check_byzantine(byzantine)

    def aggregate(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        participants(matrix, weights)
        return np.array(matrix[ranking(matrix, byzantine)[0]], np.float32)

    return aggregate


def check_byzantine(byzantine: int) -> None:
    """Raise ``ConfigError`` for a negative f."""
    if byzantine < 0:
        raise ConfigError(f"byzantine must be 0 or more, got {byzantine}")


def scores(squared: NDArray[np.float64], byzantine: int) -> NDArray[np.float64]:
    """Return Krum's score of each client, from the squared distances of all pairs."""
    n = len(squared)
    if byzantine > 0 and 2 * byzantine + 2 >= n:
        raise ConfigError(f"Cannot tolerate 2*byzantine + 2 >= n. Got byzantine={byzantine}, n={n}")
    others = squared[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    nearest = np.sort(others, axis=1)[:, : max(0, n - byzantine - 2)]
    return np.asarray(nearest.sum(axis=1), np.float64)


def ranking(matrix: NDArray[np.float32], byzantine: int) -> list[int]:
    """Return the rows' positions from the lowest score to the highest."""
    score = scores(squared_distances(matrix), byzantine)

    def compare(i: int, j: int) -> int:
        if score[i] != score[j]:
            return -1 if score[i] < score[j] else 1
        differing = np.flatnonzero(matrix[i] != matrix[j])[:1]
        return int(np.sum(np.sign(matrix[i, differing] - matrix[j, differing])))

    return sorted(range(len(matrix)), key=cmp_to_key(compare))


def multi_krum(*, byzantine: int, keep: int | None = None) -> Aggregate:
    """Return multi-Krum: the plain mean of the ``keep`` updates with the lowest scores.

    ``keep`` 1 is Krum; None keeps all but ``byzantine``. Raises ``ConfigError`` if a setting is out of range;
    the rule itself raises it if a round has too few updates.
    """
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
