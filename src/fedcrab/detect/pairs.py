"""What one round's Gram matrix says of every pair of its updates."""

from __future__ import annotations

import numpy as np

from fedcrab.history.entries import RoundEntry
from fedcrab.vectors import Matrix64

CLOSEST = 1e-6  # a relative distance below this is that of copies, and all that float32 can tell
RIDGE = 1e-9  # on the correlations, so that those of copies can be inverted too


def cosines_of(entry: RoundEntry) -> Matrix64:
    """The cosine of each pair; NaN on the diagonal and for an update of nothing."""
    n = len(entry.clients)
    gram = entry.coordinates.gram()[:n, :n]
    scale = np.sqrt(np.diagonal(gram))
    scale = np.where(scale > 0, scale, np.nan)
    cosines = np.clip(gram / np.outer(scale, scale), -1.0, 1.0)
    np.fill_diagonal(cosines, np.nan)
    return np.asarray(cosines)


def nearness_of(entry: RoundEntry, cosines: Matrix64) -> Matrix64:
    """log10 of each pair's distance over both lengths, against the median of the round."""
    lengths = np.where(entry.norms > 0, entry.norms, np.nan)
    ratio = lengths[:, None] / lengths
    squared = np.maximum(1 - 2 * cosines / (ratio + 1 / ratio), CLOSEST**2)
    distance = 0.5 * np.log10(squared)
    return distance - np.nanmedian(distance) if np.isfinite(distance).any() else distance


def log_unexplained(entry: RoundEntry, cosines: Matrix64) -> Matrix64:
    """Log of the share of each update's length that no combination of the others gives.

    The diagonal of the inverse correlation matrix is 1 / (1 - R²).
    """
    found = np.full(len(cosines), np.nan)
    there = np.flatnonzero(entry.norms > 0)
    if entry.coordinates.sketched or len(there) < 3:
        return found
    correlation = cosines[np.ix_(there, there)]
    np.fill_diagonal(correlation, 1 + RIDGE)
    found[there] = -0.5 * np.log(np.maximum(np.diagonal(np.linalg.inv(correlation)), 1.0))
    return found
