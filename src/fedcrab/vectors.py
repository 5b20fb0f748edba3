"""Arithmetic on long vectors: sums in float64, in a fixed order.

A matrix of updates is processed in blocks of columns. A block fits the processor's cache in float64, so the
matrix is never copied as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import c_double, c_size_t, c_void_p
from threading import Lock
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from fedcrab.native import address, library
from fedcrab.native.rows import plain_rows, row_places
from fedcrab.types import Vector

Part = TypeVar("Part")
Result = TypeVar("Result")
STRETCH = 1 << 18  # numbers per block: 2 MB as float64


def column_blocks(matrix: NDArray[np.floating]) -> Iterator[slice]:
    """Yield slices that cover the columns."""
    width = max(1, STRETCH // max(1, len(matrix)))
    for start in range(0, matrix.shape[1], width):
        yield slice(start, min(start + width, matrix.shape[1]))


def sorted_stretches(matrix: NDArray[np.float32]) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Yield each block of columns transposed: one row per coordinate, the clients' values sorted."""
    for place in column_blocks(matrix):
        block = np.ascontiguousarray(matrix[:, place].T)
        if np.shares_memory(block, matrix):  # with one column or one client the transpose is not a copy
            block = block.copy()
        block.sort(axis=1)
        yield place, block


def combination(coefficients: NDArray[np.float64], matrix: NDArray[np.float32]) -> Vector:
    """Σ a_c · u_c, summed in float64, client after client."""
    result = np.empty(matrix.shape[1], np.float32)
    for place in column_blocks(matrix):
        result[place] = weighted_sum(coefficients, matrix[:, place])
    return result


def squared_norms(
    matrix: NDArray[np.floating], trained: Sequence[slice] | None = None
) -> NDArray[np.float64]:
    """Return ‖u_c‖² of each row over the trained coordinates, by default over all."""
    result = np.zeros(len(matrix))
    for part in trained or (slice(0, matrix.shape[1]),):
        places = row_places(matrix[:, part])
        if (native := library()) and places is not None:
            sizes = c_size_t(len(matrix)), c_size_t(part.stop - part.start)
            native.add_squares(address(places), *sizes, address(result))
        else:
            for place in stretches((part,), BLOCK // DOT):
                blocks = (row[place].astype(np.float64) for row in matrix)
                result += [float(np.dot(block, block)) for block in blocks]
    return result


def squared_distances(matrix: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return ‖u_c − u_c'‖² of each pair of rows.

    Computed from differences, not from a Gram matrix: nearly equal rows lose no digits, and the distance of
    a pair does not depend on the positions of its rows.
    """
    result = np.zeros((len(matrix), len(matrix)))
    for place in column_blocks(matrix):
        block = matrix[:, place].astype(np.float64)
        for i in range(len(block) - 1):
            difference = block[i + 1 :] - block[i]
            result[i, i + 1 :] += np.einsum("cd,cd->c", difference, difference)
    return result + result.T


BLOCK = 2**16  # numbers processed together, so that they stay in the cache
DOT = 2**13  # numbers per dot product, for the same reason
PRODUCT = 2**18  # multiplications per product of few rows; BLAS starts no threads for so few
FEW = 64  # rows; a product of more rows has enough work for threads
SAMPLE = 256  # numbers of a row that are compared first
Matrix64 = NDArray[np.float64]
Rows = Sequence[NDArray[np.floating]] | NDArray[np.floating]


class Sliced(Protocol):
    """A long float64 vector, possibly on disk, that is read in pieces."""

    def copy_to(self, out: Matrix64, part: slice) -> None:
        """Copy the numbers of ``part`` into ``out``."""
        ...


class InMemory:
    """A vector in memory with the interface of :class:`Sliced`."""

    def __init__(self, vector: NDArray[np.floating]) -> None:
        self._vector = vector

    def copy_to(self, out: Matrix64, part: slice) -> None:
        """Copy the numbers of ``part`` into ``out``."""
        out[:] = self._vector[part]


def stretches(trained: Sequence[slice], rows: int, block: int = BLOCK) -> Iterator[slice]:
    """Yield slices of the trained coordinates, cut so that ``rows`` rows of each slice are one block."""
    width = max(256, block // max(rows, 1))
    for stretch in trained:
        for start in range(stretch.start, stretch.stop, width):
            yield slice(start, min(start + width, stretch.stop))


class _BlasThreads:
    """Counts the callers that want one thread; the first sets the limit, the last removes it."""

    lock, asking = Lock(), 0
    limits: Any = None
    controller: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run matrix products inside this block in the calling thread.

    A BLAS thread spins while it waits, and a product waits for all its threads. On a busy machine this costs
    ten times the work. Our own threads, each with its own product, avoid both.
    """
    with _BlasThreads.lock:
        if not _BlasThreads.asking:
            _BlasThreads.controller = _BlasThreads.controller or ThreadpoolController()
            _BlasThreads.limits = _BlasThreads.controller.limit(limits=1, user_api="blas")
        _BlasThreads.asking += 1
    try:
        yield
    finally:
        with _BlasThreads.lock:
            _BlasThreads.asking -= 1
            if not _BlasThreads.asking:
                _BlasThreads.limits.restore_original_limits()


def in_halves(work: Callable[[Sequence[Part]], Result], parts: Sequence[Part]) -> list[Result]:
    """Call ``work`` on the first and on the second half of the parts, each in its own thread."""
    middle = (len(parts) + 1) // 2
    if middle == len(parts):
        return [work(parts)]
    with ThreadPoolExecutor(1) as beside:
        second = beside.submit(work, parts[middle:])
        return [work(parts[:middle]), second.result()]


def products(left: Rows, right: Rows) -> Matrix64:
    """Return ⟨l, r⟩ for each row l on the left and each r on the right, summed in float64."""
    found = np.zeros((len(left), len(right)))
    ours, theirs = row_places(left), row_places(right)
    if (native := library()) and ours is not None and theirs is not None:
        places = address(ours), c_size_t(len(left)), address(theirs), c_size_t(len(right))
        native.add_products(*places, c_size_t(len(left[0])), address(found))
        return found
    width = max(1, min(DOT, PRODUCT // max(1, found.size)))
    for start in range(0, len(left[0]), width):
        part = slice(start, start + width)
        found += _block(left, part) @ _block(right, part).T
    return found


def _block(rows: Rows, part: slice) -> Matrix64:
    return np.array([row[part] for row in rows], np.float64)


def dot(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """Return ⟨one, other⟩, summed in float64."""
    return float(products([one], [other])[0, 0])


def norm(vector: NDArray[np.floating], trained: Sequence[slice] | None = None) -> float:
    """Return ‖vector‖₂ over the trained coordinates, by default over all."""
    return float(np.sqrt(squared_norms(vector[None], trained)[0]))


def weighted_sum(factors: Matrix64, rows: Rows, out: Matrix64 | None = None) -> Matrix64:
    """Σ factor·row in float64, row after row: the same bits with the kernel and without.

    Without it, numpy adds the numbers of a single column in another order.
    """
    out = np.empty(len(rows[0])) if out is None else out
    places, factors = row_places(rows), np.ascontiguousarray(factors, np.float64)
    if (native := library()) and places is not None:
        sizes = c_size_t(len(rows)), c_size_t(len(out))
        native.weighted_sum(address(places), address(factors), *sizes, address(out))
        return out
    terms = _block(rows, slice(None))
    terms *= factors[:, None]
    np.add.reduce(terms, axis=0, out=out)
    return out


def add_weighted(start: Vector, factors: Matrix64, rows: Rows, out: Vector, *, most: float) -> bool:
    """Fill in start + Σ factor·row, summed in float64; stop and return False at a number beyond ±most."""
    ends, places = row_places([start, out]), row_places(rows)
    factors = np.ascontiguousarray(factors, np.float64)
    if (native := library()) and ends is not None and places is not None:
        first, last = (c_void_p(int(place)) for place in ends)
        sizes = c_size_t(len(rows)), c_size_t(len(start))
        return bool(
            native.add_weighted(first, address(places), address(factors), *sizes, c_double(most), last)
        )
    for part in stretches((slice(0, len(start)),), len(rows)):
        total = weighted_sum(factors, [row[part] for row in rows])
        total += start[part]
        if not (total.max() <= most and -total.min() <= most):  # NaN is beyond too
            return False
        out[part] = total
    return True


def distance(left: Vector, right: Vector, trained: Sequence[slice]) -> float:
    """Return ‖left - right‖₂ over the trained coordinates, without allocating a third vector."""
    total = 0.0
    for part in stretches(trained or (slice(0, len(left)),), BLOCK // DOT):
        block = (left[part] - right[part]).astype(np.float64)
        total += float(np.dot(block, block))
    return float(np.sqrt(total))


def weighted_mean(
    vectors: NDArray[np.float32], weights: Matrix64, trained: Sequence[slice], beside: Executor
) -> Matrix64:
    """Σ p_c·u_c with p = weights / Σ weights; zero outside the trained coordinates.

    Clients are added one after the other, by a kernel or by numpy on two cores; the bits are the same.
    """
    mean = np.zeros(vectors.shape[1])
    rows = np.flatnonzero(weights)
    if not len(rows):
        return mean
    shares = weights[rows] / weights.sum()
    if library():
        matrix = plain_rows(vectors)
        for part in trained:
            weighted_sum(shares, [matrix[row, part] for row in rows], mean[part])
        return mean
    parts = list(stretches(trained, len(vectors)))

    def fill(some: Sequence[slice]) -> None:
        for part in some:
            weighted_sum(shares, vectors[rows, part], mean[part])

    other = beside.submit(fill, parts[len(parts) // 2 :])
    fill(parts[: len(parts) // 2])
    other.result()
    return mean


def first_equal(vectors: NDArray[np.float32]) -> list[int]:
    """Return, for each row, the first row with the same bits."""
    found: list[int] = []
    alike: dict[bytes, list[int]] = {}  # rows with the same few numbers, all different
    step = max(1, vectors.shape[1] // SAMPLE)
    for place, row in enumerate(vectors):
        others = alike.setdefault(row[::step].tobytes(), [])
        same = (other for other in others if _same_bits(vectors[other], row))
        found.append(next(same, place))
        if found[-1] == place:
            others.append(place)
    return found


def _same_bits(one: Vector, other: Vector) -> bool:
    return bool(np.array_equal(one.view(np.uint32), other.view(np.uint32)))


def is_finite(vector: NDArray[np.floating]) -> bool:
    """Return whether every number is finite. One product decides this for most vectors."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(squared_norms(vector[None])[0]):
            return True
    blocks = range(0, len(vector), BLOCK)
    return all(bool(np.isfinite(vector[start : start + BLOCK]).all()) for start in blocks)
