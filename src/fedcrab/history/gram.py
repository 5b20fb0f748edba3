"""The geometry of a round: few numbers from which the norm of any combination of its updates follows.

The points of a round are its clients' updates and the means of earlier rounds that it may be compared
with. Up to ``gram_limit`` clients their coordinates X are exact: the triangular factor of the Gram
matrix K = X·Xᵀ, so ‖Σ a_i·point_i‖ = ‖aᵀX‖. The factor is kept in place of K because √(aᵀKa) loses half
the digits when attackers are nearly honest; X loses none. Above the limit the coordinates are a seeded
Johnson-Lindenstrauss sketch of each point, and the same formula holds with the error of
:func:`sketch_error`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fedcrab.seeds import rng_for
from fedcrab.vectors import BLOCK, InMemory, Matrix64, Sliced, add_products, norm, stretches

WIDE = 2  # times as many columns as points are taken into the triangle at once: it is made again each time
SAFE_EIGENVALUE = 1e-6  # of the correlation matrix; above it K's own rounding costs X at most 1e-7


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where the points of a round lie: packed rows of a triangle, or sketches."""

    points: int
    sketched: bool
    numbers: Matrix64  # packed triangle, or (points × sketch size)

    @property
    def width(self) -> int:
        """How many coordinates a point has."""
        return len(self.numbers) // self.points if self.sketched and self.points else self.points

    def row(self, point: int) -> Matrix64:
        """The coordinates of one point; those after the last given are zero."""
        if self.sketched:
            return self.numbers[point * self.width : (point + 1) * self.width]
        start = point * (point + 1) // 2
        return self.numbers[start : start + point + 1]

    def combine(self, points: Sequence[int], factors: Sequence[float] | Matrix64) -> Matrix64:
        """The coordinates of Σ factor·point."""
        total = np.zeros(self.width)
        for point, factor in zip(points, factors, strict=True):
            row = self.row(point)
            total[: len(row)] += float(factor) * row
        return total

    def rows(self, points: Sequence[int]) -> Matrix64:
        """The coordinates of these points, a row each, zeros and all."""
        full = np.zeros((len(points), self.width))
        for place, point in enumerate(points):
            row = self.row(point)
            full[place, : len(row)] = row
        return full

    def gram(self) -> Matrix64:
        """K = X·Xᵀ over all points (up to the sketch's error where sketched)."""
        full = self.rows(range(self.points))
        return full @ full.T


@dataclass(frozen=True, slots=True)
class GramMeasures:
    """What is measured of a round's updates while they are there."""

    norms: Matrix64  # ‖u_c‖
    cosines: Matrix64  # with the aggregate; -1 where either is zero
    coordinates: Coordinates  # of the clients, then of the references


def measure(
    vectors: NDArray[np.float32],
    aggregate: NDArray[np.float32],
    references: Sequence[Sliced],
    trained: Sequence[slice],
) -> GramMeasures:
    """One pass over the updates: norms, cosines with the aggregate, exact coordinates."""
    clients, points = len(vectors), len(vectors) + len(references)
    gram = np.zeros((points + 1, points + 1))  # the aggregate is the last row
    for part in stretches(trained, points + 1):
        add_products(gram, _block(vectors, [*references, InMemory(aggregate)], part))
    exact = _cholesky(gram[:-1, :-1])
    if exact is None:
        exact = _orthogonal(vectors, references, trained)
    norms = np.sqrt(np.diagonal(gram))
    cosines = _cosines(gram[:clients, -1], norms[:clients], norms[-1])
    return GramMeasures(norms[:clients], cosines, Coordinates(points, False, _pack(exact)))


def _cosines(dots: Matrix64, norms: Matrix64, length: float) -> Matrix64:
    """⟨u, G⟩ / (‖u‖·‖G‖), and -1 where that has no meaning."""
    scale = norms * length
    result: Matrix64 = np.divide(dots, scale, out=np.full(len(dots), -1.0), where=scale > 0)
    return result


def _block(vectors: NDArray[np.float32], references: Sequence[Sliced], part: slice) -> Matrix64:
    block = np.empty((len(vectors) + len(references), part.stop - part.start))
    block[: len(vectors)] = vectors[:, part]
    for row, reference in enumerate(references, len(vectors)):
        reference.copy_to(block[row], part)
    return block


def _cholesky(gram: Matrix64) -> Matrix64 | None:
    """X with X·Xᵀ = K, where K is far enough from singular for its rounding not to matter; else None."""
    scale = np.sqrt(np.diagonal(gram))
    there = np.flatnonzero(scale > 0)
    correlation = gram[np.ix_(there, there)] / np.outer(scale[there], scale[there])
    try:
        np.linalg.cholesky(correlation - SAFE_EIGENVALUE * np.eye(len(there)))
        lower = np.linalg.cholesky(correlation)
    except np.linalg.LinAlgError:
        return None
    exact = np.zeros_like(gram)
    exact[np.ix_(there, there)] = lower * scale[there, None]
    return exact


def _orthogonal(
    vectors: NDArray[np.float32], references: Sequence[Sliced], trained: Sequence[slice]
) -> Matrix64:
    """X by orthogonal transformations alone: slower, and as accurate as the vectors themselves."""
    points = len(vectors) + len(references)
    upper = np.zeros((0, points))
    for part in stretches(trained, min(points, BLOCK // (WIDE * points) + 1)):
        rows = np.vstack([upper, _block(vectors, references, part).T])
        upper = np.asarray(np.linalg.qr(rows, mode="r"))
    exact = np.zeros((points, points))
    exact[:, : len(upper)] = upper.T
    return exact


def _pack(lower: Matrix64) -> Matrix64:
    return np.asarray(lower[np.tril_indices(len(lower))])


def sketch_error(size: int) -> float:
    """The relative standard error of a norm taken from sketches of this many numbers: 1/√(2k)."""
    return 1 / sqrt(2 * size)


def measure_sketched(
    vectors: NDArray[np.float32],
    aggregate: NDArray[np.float32],
    references: Sequence[Sliced],
    trained: Sequence[slice],
    *,
    size: int,
    seed: int,
    round: int,
) -> GramMeasures:
    """One pass over the updates: norms and cosines exact, coordinates sketched.

    Each run of ``size`` coordinates is permuted and given random signs, then all runs are added up. The
    signs come from the history's own seed, which clients do not know: nobody can hide in the kernel.
    """
    rng = rng_for(seed, "sketch", round)
    clients = len(vectors)
    sketch, squares, dots = np.zeros((clients + len(references), size)), np.zeros(clients), np.zeros(clients)
    for part in _runs(trained, size):
        block, goal = _block(vectors, references, part), aggregate[part].astype(np.float64)
        squares += np.einsum("ij,ij->i", block[:clients], block[:clients])
        dots += block[:clients] @ goal
        signs = rng.choice(np.array([-1.0, 1.0]), block.shape[1])
        sketch[:, rng.permutation(size)[: block.shape[1]]] += block * signs
    norms = np.sqrt(squares)
    cosines = _cosines(dots, norms, norm(aggregate, trained))
    return GramMeasures(norms, cosines, Coordinates(len(sketch), True, sketch.reshape(-1)))


def _runs(trained: Sequence[slice], size: int) -> Iterator[slice]:
    for stretch in trained:
        for start in range(stretch.start, stretch.stop, size):
            yield slice(start, min(start + size, stretch.stop))
