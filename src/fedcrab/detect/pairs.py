"""What one round's Gram matrix says of every pair of its updates.

A round of a thousand clients has half a million pairs, so these are matrix products and a few passes over
them, without NaN: who sent nothing is left out before, and diagonals are 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.history.entries import RoundEntry
from fedcrab.vectors import Matrix64

CLOSEST = 1e-6  # a relative distance below this is that of copies, and all that float32 can tell
RIDGE = 1e-9  # on the correlations, so that those of copies can be inverted too
SMALL = 128  # rows of a matrix that are inverted at once


def cosines_of(entry: RoundEntry) -> tuple[NDArray[np.intp], Matrix64]:
    """Which clients of a round sent anything, and the cosine of each pair of them."""
    rows = entry.coordinates.rows(range(len(entry.clients)))
    scale = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    there = np.flatnonzero((scale > 0) & (entry.norms > 0))
    unit = rows[there] / scale[there, None]
    cosines = unit @ unit.T
    np.clip(cosines, -1.0, 1.0, out=cosines)
    np.fill_diagonal(cosines, 0.0)
    return there, np.asarray(cosines)


def beside_mean(cosines: Matrix64) -> Matrix64:
    """Less the mean of all pairs."""
    pairs = len(cosines) * (len(cosines) - 1)
    found = cosines - cosines.sum() / max(pairs, 1)
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def nearness_of(norms: Matrix64, cosines: Matrix64) -> Matrix64:
    """log10 of each pair's distance over both lengths, against the median of the round."""
    squares = norms**2
    found = np.multiply.outer(-2 * norms, norms)
    found /= np.add.outer(squares, squares)
    found *= cosines
    found += 1.0
    np.maximum(found, CLOSEST**2, out=found)
    np.log10(found, out=found)
    found *= 0.5
    found -= np.median(found[np.tri(len(found), k=-1, dtype=bool)]) if len(found) > 1 else 0.0
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def log_unexplained(cosines: Matrix64) -> Matrix64:
    """Log of the share of each update's length that no combination of the others gives.

    The diagonal of the inverse correlation matrix is 1 / (1 - R²).
    """
    if len(cosines) < 3:
        return np.full(len(cosines), np.nan)
    correlation = cosines.copy()
    np.fill_diagonal(correlation, 1 + RIDGE)
    return np.asarray(-0.5 * np.log(np.maximum(inverse_diagonal(correlation), 1.0)))


def inverse_diagonal(matrix: Matrix64) -> Matrix64:
    """The diagonal of the inverse of a symmetric matrix: with M = LLᵀ, the squares in the columns of L⁻¹."""
    try:
        inverse = _inverse_of_lower(np.asarray(np.linalg.cholesky(matrix), np.float64))
    except np.linalg.LinAlgError:
        return np.asarray(np.diagonal(np.linalg.inv(matrix)))
    return np.asarray(np.square(inverse, out=inverse).sum(axis=0))


def _inverse_of_lower(lower: Matrix64) -> Matrix64:
    """The inverse of a lower triangle: [[A, 0], [B, D]]⁻¹ = [[A⁻¹, 0], [-D⁻¹·B·A⁻¹, D⁻¹]]."""
    half = len(lower) // 2
    if len(lower) <= SMALL:
        return np.asarray(np.linalg.inv(lower), np.float64)
    inverse = np.zeros_like(lower)
    inverse[:half, :half] = first = _inverse_of_lower(lower[:half, :half])
    inverse[half:, half:] = second = _inverse_of_lower(lower[half:, half:])
    inverse[half:, :half] = -second @ (lower[half:, :half] @ first)
    return inverse
