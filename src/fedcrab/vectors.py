"""Sums over long vectors: float64, in a fixed order, a small block at a time.

Identical rows give identical results whatever their place in the matrix, so that ties are ties.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

BLOCK = 2**15  # numbers in a block: small enough for the cache, and for nobody to notice the memory

Matrix64 = NDArray[np.float64]


def stretches(trained: Sequence[slice], rows: int) -> Iterator[slice]:
    """The trained coordinates, cut so that ``rows`` rows of each piece are one block."""
    width = max(256, BLOCK // max(rows, 1))
    for stretch in trained:
        for start in range(stretch.start, stretch.stop, width):
            yield slice(start, min(start + width, stretch.stop))


def row_dots(block: Matrix64, other: Matrix64) -> Matrix64:
    """⟨row, other⟩ for every row; ``other`` is one vector or as many rows."""
    return np.asarray(np.einsum("ij,ij->i", block, np.broadcast_to(other, block.shape)))


def norm(vector: NDArray[np.floating], trained: Sequence[slice] | None = None) -> float:
    """‖vector‖₂ over the trained coordinates (all, unless told)."""
    total = 0.0
    for part in stretches(trained or (slice(0, len(vector)),), 1):
        block = vector[part].astype(np.float64)
        total += float(np.dot(block, block))
    return float(np.sqrt(total))


def weighted_mean(vectors: NDArray[np.float32], weights: Matrix64, trained: Sequence[slice]) -> Matrix64:
    """Σ p_c·u_c over the rows with p = weights / Σ weights; zero outside the trained coordinates."""
    mean = np.zeros(vectors.shape[1])
    if len(vectors):
        shares = weights / weights.sum()
        for part in stretches(trained, len(vectors)):
            mean[part] = shares @ vectors[:, part].astype(np.float64)
    return mean
