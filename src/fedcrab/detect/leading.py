"""The leading eigenvalue and eigenvector of a symmetric matrix, without all the others.

Lanczos's method with every new vector made orthogonal to all before it (Golub and Van Loan, "Matrix
Computations", 10.1 to 10.3). |β_k·s_k| is how far the pair found is from being one; where that does not
become small, and for small matrices, all pairs are computed.
"""

from __future__ import annotations

import numpy as np

from fedcrab.seeds import rng_for
from fedcrab.vectors import Matrix64

SMALL = 200  # rows, up to which all pairs are as quick
STEPS, BETWEEN = 160, 20  # the most steps, and how many between two looks at the result
EXACT = 1e-10  # of the eigenvalue


def leading_pair(matrix: Matrix64) -> tuple[float, Matrix64]:
    """The largest eigenvalue and its vector, of length 1."""
    found = _by_lanczos(matrix) if len(matrix) > SMALL else None
    if found is not None:
        return found
    values, vectors = np.linalg.eigh(matrix)
    return float(values[-1]), np.asarray(vectors[:, -1])


def _by_lanczos(matrix: Matrix64) -> tuple[float, Matrix64] | None:
    """The pair, where it is found within so many steps."""
    basis, diagonal, beside = np.zeros((STEPS + 1, len(matrix))), np.zeros(STEPS), np.zeros(STEPS)
    start = rng_for(0, "leading pair", len(matrix)).normal(size=len(matrix))
    basis[0] = start / np.linalg.norm(start)
    for step in range(STEPS):
        new = matrix @ basis[step]
        diagonal[step] = new @ basis[step]
        for _ in range(2):  # once is not enough where rounding has let old directions in again
            new -= basis[: step + 1].T @ (basis[: step + 1] @ new)
        beside[step] = np.linalg.norm(new)
        if (step + 1) % BETWEEN == 0 or not beside[step]:
            value, weights = _largest(diagonal[: step + 1], beside[:step])
            if beside[step] * abs(weights[-1]) <= EXACT * abs(value):
                vector = weights @ basis[: step + 1]
                return value, vector / np.linalg.norm(vector)
        if not beside[step]:
            return None
        basis[step + 1] = new / beside[step]
    return None


def _largest(diagonal: Matrix64, beside: Matrix64) -> tuple[float, Matrix64]:
    values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
    return float(values[-1]), np.asarray(vectors[:, -1])
