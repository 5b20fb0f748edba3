"""The geometry of a round: a few numbers that give the norm of any combination of its updates.

The points of a round are its clients' updates and the means of earlier rounds that it may be compared with.
For up to ``gram_limit`` clients the coordinates X are exact: the triangular factor of the Gram matrix
K = X·Xᵀ, so ‖Σ a_i·point_i‖ = ‖aᵀX‖. The factor is stored instead of K, because √(aᵀKa) loses half the digits
when attackers are nearly honest, and X loses none. Above the limit the coordinates are a seeded
Johnson-Lindenstrauss sketch of each point. The same formula holds, with the error of :func:`sketch_error`.


X is rounded to the fewest binary digits m that keep every length accurate. Let U be the rows of X scaled to
length 1, λ the least eigenvalue of U·Uᵀ and b_i = a_i·‖X_i‖. Rounding moves aᵀX by at most
‖b‖·2^(-m-1)·√points, while ‖aᵀX‖ ≥ √λ·‖b‖. So no length changes by more than

    2^(-m-1) · √(points / λ)  ≤  LENGTH_ERROR        of itself, whatever the combination.

Equal updates share one row and count as one point. Rounds with few points are not rounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from ctypes import CDLL, c_size_t
from dataclasses import dataclass
from itertools import islice
from math import ceil, log2, sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedcrab.history.number_planes import EXACT, rounded
from fedcrab.native import address, library
from fedcrab.native.rows import plain_rows, rows_at
from fedcrab.seeds import rng_for
from fedcrab.vectors import (
    BLOCK,
    FEW,
    InMemory,
    Matrix64,
    Sliced,
    in_halves,
    norm,
    one_blas_thread,
    stretches,
)

WIDE = 2  # columns per point that are reduced to the triangle at once
SAFE = 10  # λ of 4^-10, about 1e-6: above it, rounding in K costs X at most 1e-7
LENGTH_ERROR = 1e-6  # the largest relative change of any length by rounding
FEWEST_DIGITS, SKETCH_DIGITS = 26, 28
LARGE_BLOCK = 2**18  # numbers per product: fewer calls are worth more here than the fastest cache
RUNS, ROWS = 64, 64  # of a sketch at a time: few random numbers are held, and the rows fit the cache


class StoredNumbers(Protocol):
    """Coordinates in a ledger, read on demand."""

    def __len__(self) -> int:
        """Return how many numbers there are."""
        ...

    def read(self) -> Matrix64:
        """Return all numbers."""
        ...


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The coordinates of a round's points: the packed rows of a triangle, or sketches."""

    points: int
    sketched: bool
    held: Matrix64 | StoredNumbers  # packed triangle, or (points × sketch size)
    digits: int = EXACT  # binary digits per number

    @property
    def numbers(self) -> Matrix64:
        """The packed triangle, or the sketches one after the other."""
        return self.held if isinstance(self.held, np.ndarray) else self.held.read()

    @property
    def width(self) -> int:
        """How many coordinates a point has."""
        return len(self.held) // self.points if self.sketched and self.points else self.points

    def row(self, point: int) -> Matrix64:
        """Return the coordinates of one point; trailing zeros are left out."""
        return self._row(self.numbers, point)

    def _row(self, numbers: Matrix64, point: int) -> Matrix64:
        if self.sketched:
            return numbers[point * self.width : (point + 1) * self.width]
        start = point * (point + 1) // 2
        return numbers[start : start + point + 1]

    def combine(self, points: Sequence[int], factors: Sequence[float] | Matrix64) -> Matrix64:
        """Return the coordinates of Σ factor·point."""
        numbers = self.numbers
        if self.sketched and len(points):
            shares = np.zeros(self.points)
            np.add.at(shares, np.asarray(points), factors)
            return np.asarray(shares @ numbers.reshape(self.points, -1))
        total = np.zeros(self.width)
        for point, factor in zip(points, factors, strict=True):
            row = self._row(numbers, point)
            total[: len(row)] += float(factor) * row
        return total

    def rows(self, points: Sequence[int]) -> Matrix64:
        """Return the coordinates of these points, one row each, with all zeros. Do not write to them."""
        numbers = self.numbers
        if self.sketched and len(points):
            everyone = numbers.reshape(self.points, -1)
            in_order = isinstance(points, range) and points == range(len(points))
            return everyone[: len(points)] if in_order else everyone[np.asarray(points)]
        full = np.zeros((len(points), self.width))
        for place, point in enumerate(points):
            row = self._row(numbers, point)
            full[place, : len(row)] = row
        return full

    def gram(self) -> Matrix64:
        """Return K = X·Xᵀ over all points, up to the sketch's error if sketched."""
        full = self.rows(range(self.points))
        return full @ full.T


@dataclass(frozen=True, slots=True)
class GramMeasures:
    """What is measured about a round's updates while they are in memory."""

    norms: Matrix64  # ‖u_c‖
    cosines: Matrix64  # with the aggregate; -1 where either is zero
    coordinates: Coordinates  # of the clients, then of the references


@one_blas_thread()
def measure(
    vectors: NDArray[np.float32],
    aggregate: NDArray[np.float32],
    references: Sequence[Sliced],
    trained: Sequence[slice],
) -> GramMeasures:
    """Measure norms, cosines with the aggregate and exact coordinates in one pass over the updates."""
    clients = len(vectors)
    gram = _products(vectors, [*references, InMemory(aggregate)], trained)  # the aggregate is the last row
    norms = np.sqrt(np.diagonal(gram))
    cosines = _cosines(gram[:clients, -1], norms[:clients], norms[-1])
    return GramMeasures(norms[:clients], cosines, _exact(gram[:-1, :-1], vectors, references, trained))


def _products(
    vectors: NDArray[np.float32], references: Sequence[Sliced], trained: Sequence[slice]
) -> Matrix64:
    """Return K of all points; with many points its parts are summed in two threads."""
    points = len(vectors) + len(references)
    if (native := library()) and points <= native.gram_most_rows():
        return _native_products(native, vectors, references, trained)

    def total(parts: Sequence[slice]) -> Matrix64:
        gram = np.zeros((points, points))
        for part in parts:
            block = _block(vectors, references, part)
            gram += block @ block.T
        return gram

    parts = list(stretches(trained, points, LARGE_BLOCK))
    return np.sum(in_halves(total, parts), axis=0) if points > FEW else total(parts)


def _native_products(
    native: CDLL, vectors: NDArray[np.float32], references: Sequence[Sliced], trained: Sequence[slice]
) -> Matrix64:
    """Return K of a few points by a kernel that converts the numbers to float64 on the way."""
    rows = plain_rows(vectors)
    gram = np.zeros((len(rows) + len(references),) * 2)
    scratch = np.empty(native.gram_scratch_size(), np.uint8)
    for part in stretches(trained, len(references), LARGE_BLOCK):
        more = _block(rows[:0], references, part)
        native.gram_add(
            *rows_at(rows[:, part]), *rows_at(more), c_size_t(more.shape[1]), address(gram), address(scratch)
        )
    gram += np.tril(gram, -1).T
    return gram


def _exact(
    gram: Matrix64, vectors: NDArray[np.float32], references: Sequence[Sliced], trained: Sequence[slice]
) -> Coordinates:
    """Return X with X·Xᵀ = K: from K if it is far from singular, otherwise from the vectors themselves."""
    points = np.arange(len(gram))
    there = np.flatnonzero(np.diagonal(gram) > 0)
    found = _cholesky(gram, there)
    if found is None:
        points = _first_alike(vectors, len(gram), trained)
        there = np.intersect1d(there, points)
        found = _cholesky(gram, there) if len(there) < len(gram) else None
    if found is None:
        lower, digits = _orthogonal(vectors, references, trained, there), EXACT
    else:
        lower, digits = found
    full = np.zeros_like(gram)
    full[np.ix_(there, there)] = lower
    return Coordinates(len(gram), False, rounded(_pack(full[points]), digits), digits)


def _first_alike(vectors: NDArray[np.float32], points: int, trained: Sequence[slice]) -> NDArray[np.intp]:
    """Return, for each point, the first point that is equal to it."""
    first: dict[bytes, int] = {}
    alike = np.arange(points)
    for place, vector in enumerate(vectors):
        digest = hashlib.sha256()
        for part in trained:
            digest.update(np.ascontiguousarray(vector[part]).data)
        alike[place] = first.setdefault(digest.digest(), place)
    return alike


def digits_needed(points: int, eigenvalue: float) -> int:
    """Return the fewest binary digits with which no length changes by more than ``LENGTH_ERROR``.

    A round with few points keeps all digits, because it is small anyway.
    """
    if points <= FEW:
        return EXACT
    digits = ceil(log2(sqrt(points / eigenvalue) / LENGTH_ERROR)) - 1
    return min(max(digits, FEWEST_DIGITS), EXACT)


def _cosines(dots: Matrix64, norms: Matrix64, length: float) -> Matrix64:
    """Return ⟨u, G⟩ / (‖u‖·‖G‖), and -1 where it is undefined."""
    scale = norms * length
    result: Matrix64 = np.divide(dots, scale, out=np.full(len(dots), -1.0), where=scale > 0)
    return result


def _block(vectors: NDArray[np.float32], references: Sequence[Sliced], part: slice) -> Matrix64:
    block = np.empty((len(vectors) + len(references), part.stop - part.start))
    block[: len(vectors)] = vectors[:, part]
    for row, reference in enumerate(references, len(vectors)):
        reference.copy_to(block[row], part)
    return block


def _cholesky(gram: Matrix64, there: NDArray[np.intp]) -> tuple[Matrix64, int] | None:
    """Return X of these points and the digits that it needs; None if rounding in K would matter."""
    scale = np.sqrt(np.diagonal(gram)[there])
    correlation = gram[np.ix_(there, there)] / np.outer(scale, scale)
    power = _least_power(correlation)
    if power is None:
        return None
    return np.linalg.cholesky(correlation) * scale[:, None], digits_needed(len(there), 4.0**-power)


def _least_power(correlation: Matrix64) -> int | None:
    """Return the least k for which every eigenvalue exceeds 4^-k; None if none exists up to SAFE."""
    if not _exceeds(correlation, SAFE):
        return None
    below, enough = 0, SAFE
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if _exceeds(correlation, middle) else (middle, enough)
    return enough


def _exceeds(correlation: Matrix64, power: int) -> bool:
    """Return whether every eigenvalue is above 4^-power."""
    try:
        np.linalg.cholesky(correlation - 4.0**-power * np.eye(len(correlation)))
    except np.linalg.LinAlgError:
        return False
    return True


def _orthogonal(
    vectors: NDArray[np.float32],
    references: Sequence[Sliced],
    trained: Sequence[slice],
    there: NDArray[np.intp],
) -> Matrix64:
    """Return X of these points by orthogonal transformations: slower, but as accurate as the vectors."""
    points = len(vectors) + len(references)

    def triangle(parts: Sequence[slice]) -> Matrix64:
        upper = np.zeros((0, len(there)))
        for part in parts:
            rows = np.vstack([upper, _block(vectors, references, part)[there].T])
            upper = np.asarray(np.linalg.qr(rows, mode="r"))
        return upper

    parts = list(stretches(trained, min(points, BLOCK // (WIDE * points) + 1)))
    both = in_halves(triangle, parts) if points > FEW else [triangle(parts)]
    upper = both[0] if len(both) == 1 else np.asarray(np.linalg.qr(np.vstack(both), mode="r"))
    exact = np.zeros((len(there), len(there)))
    exact[:, : len(upper)] = upper.T
    return exact


def _pack(lower: Matrix64) -> Matrix64:
    return np.asarray(lower[np.tril_indices(len(lower))])


def sketch_error(size: int) -> float:
    """Return the relative standard error of a norm from sketches of this many numbers: 1/√(2k)."""
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
    """Measure a round in one pass over the updates: norms and cosines exactly, coordinates by sketches.

    Each run of ``size`` coordinates is permuted and given random signs; then all runs are added. The signs
    come from the history's seed. Clients do not know it, so nobody can craft updates that the sketch misses.
    """
    rng = rng_for(seed, "sketch", round)
    clients = len(vectors)
    sketch, squares, dots = np.zeros((clients + len(references), size)), np.zeros(clients), np.zeros(clients)
    runs = _runs(trained, size)
    while some := list(islice(runs, RUNS)):
        drawn = [_drawn(rng, part, size) for part in some]
        for rows in (slice(at, min(at + ROWS, clients)) for at in range(0, clients, ROWS)):
            for part, signs, order in drawn:
                block = vectors[rows, part].astype(np.float64)
                squares[rows] += np.einsum("ij,ij->i", block, block)
                dots[rows] += block @ aggregate[part].astype(np.float64)
                _add_permuted(sketch[rows], block, signs, order)
        for part, signs, order in drawn:
            _add_permuted(sketch[clients:], _block(vectors[:0], references, part), signs, order)
    norms = np.sqrt(squares)
    cosines = _cosines(dots, norms, norm(aggregate, trained))
    numbers = rounded(sketch.reshape(-1), SKETCH_DIGITS)
    return GramMeasures(norms, cosines, Coordinates(len(sketch), True, numbers, SKETCH_DIGITS))


def _drawn(rng: np.random.Generator, part: slice, size: int) -> tuple[slice, Matrix64, NDArray[np.intp]]:
    """A run, its random signs, and which of its columns comes to each place of the sketch; -1: none does."""
    columns = part.stop - part.start
    signs = rng.choice(np.array([-1.0, 1.0]), columns)
    order = np.full(size, -1)
    order[rng.permutation(size)[:columns]] = np.arange(columns)
    return part, signs, order


def _add_permuted(sketch: Matrix64, block: Matrix64, signs: Matrix64, order: NDArray[np.intp]) -> None:
    block *= signs
    if len(signs) == len(order):
        sketch += block[:, order]
    else:
        places = np.flatnonzero(order >= 0)
        sketch[:, places] += block[:, order[places]]


def _runs(trained: Sequence[slice], size: int) -> Iterator[slice]:
    for stretch in trained:
        for start in range(stretch.start, stretch.stop, size):
            yield slice(start, min(start + size, stretch.stop))
