"""Sums over long vectors: float64, in a fixed order, a small block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

BLOCK = 2**16  # numbers looked at together: they stay in the cache
PRODUCT = 2**14  # numbers multiplied together: BLAS starts no threads for so few, and needs none

Matrix64 = NDArray[np.float64]


class Sliced(Protocol):
    """A long vector of float64 numbers, in memory or on disk, of which one asks for a piece."""

    def __getitem__(self, part: slice, /) -> Matrix64:
        """The numbers of this piece."""
        ...


def stretches(trained: Sequence[slice], rows: int) -> Iterator[slice]:
    """The trained coordinates, cut so that ``rows`` rows of each piece are one block."""
    width = max(256, BLOCK // max(rows, 1))
    for stretch in trained:
        for start in range(stretch.start, stretch.stop, width):
            yield slice(start, min(start + width, stretch.stop))


def add_products(gram: Matrix64, block: Matrix64) -> None:
    """Gram += block·blockᵀ, a few columns at a time."""
    width = max(64, PRODUCT // len(block))
    for start in range(0, block.shape[1], width):
        columns = block[:, start : start + width]
        gram += columns @ columns.T


def norm(vector: NDArray[np.floating], trained: Sequence[slice] | None = None) -> float:
    """‖vector‖₂ over the trained coordinates (all, unless told)."""
    total = 0.0
    for part in stretches(trained or (slice(0, len(vector)),), 1):
        block = vector[part].astype(np.float64)
        total += float(np.dot(block, block))
    return float(np.sqrt(total))


def weighted_mean(
    vectors: NDArray[np.float32], weights: Matrix64, trained: Sequence[slice]
) -> Iterator[Matrix64]:
    """Σ p_c·u_c with p = weights / Σ weights, piece by piece; zero outside the trained coordinates."""
    rows = np.flatnonzero(weights)
    shares = weights[rows] / weights.sum() if len(rows) else weights[rows]
    done = 0
    for part in stretches(trained, len(vectors)):
        yield from _zeros(part.start - done)
        yield np.asarray(shares @ vectors[rows, part].astype(np.float64))
        done = part.stop
    yield from _zeros(vectors.shape[1] - done)


def _zeros(count: int) -> Iterator[Matrix64]:
    for start in range(0, count, BLOCK):
        yield np.zeros(min(BLOCK, count - start))


def is_finite(vector: NDArray[np.floating]) -> bool:
    """Whether every number is finite: one product tells of most vectors, else block by block."""
    if np.isfinite(np.dot(vector, vector)):
        return True
    blocks = range(0, len(vector), BLOCK)
    return all(bool(np.isfinite(vector[start : start + BLOCK]).all()) for start in blocks)
