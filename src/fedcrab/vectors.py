"""Sums over long vectors: float64, in a fixed order, a small block at a time.

Passes over a matrix of updates in stretches of columns.

A stretch fits the processor's cache in float64, so sums are exact enough and the whole is never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from fedcrab.types import Vector

Part = TypeVar("Part")
Result = TypeVar("Result")
STRETCH = 1 << 18  # numbers at a time: 2 MB as float64


def column_blocks(matrix: NDArray[np.float32]) -> Iterator[slice]:
    """Slices that cover the columns."""
    width = max(1, STRETCH // max(1, len(matrix)))
    for start in range(0, matrix.shape[1], width):
        yield slice(start, min(start + width, matrix.shape[1]))


def sorted_stretches(matrix: NDArray[np.float32]) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """For each stretch its coordinates, one a row, the clients' values ascending."""
    for place in column_blocks(matrix):
        block = np.ascontiguousarray(matrix[:, place].T)
        if np.shares_memory(block, matrix):  # one column or one client: the transpose is no copy
            block = block.copy()
        block.sort(axis=1)
        yield place, block


def combination(coefficients: NDArray[np.float64], matrix: NDArray[np.float32]) -> Vector:
    """Σ a_c · u_c, summed in float64."""
    result = np.empty(matrix.shape[1], np.float32)
    for place in column_blocks(matrix):
        result[place] = coefficients @ matrix[:, place].astype(np.float64)
    return result


def squared_norms(matrix: NDArray[np.float32]) -> NDArray[np.float64]:
    """‖u_c‖² for each row."""
    result = np.zeros(len(matrix))
    for place in column_blocks(matrix):
        block = matrix[:, place].astype(np.float64)
        result += np.einsum("cd,cd->c", block, block)
    return result


def squared_distances(matrix: NDArray[np.float32]) -> NDArray[np.float64]:
    """‖u_c − u_c'‖² for each pair of rows.

    From differences, not from a Gram matrix: near-equal rows lose no digits, and a pair's distance has the
    same bits wherever its rows stand.
    """
    result = np.zeros((len(matrix), len(matrix)))
    for place in column_blocks(matrix):
        block = matrix[:, place].astype(np.float64)
        for i in range(len(block) - 1):
            difference = block[i + 1 :] - block[i]
            result[i, i + 1 :] += np.einsum("cd,cd->c", difference, difference)
    return result + result.T


BLOCK = 2**16  # numbers looked at together: they stay in the cache
DOT = 2**13  # numbers of one dot product, for the same reason
PRODUCT = 2**18  # multiplications of one product of few rows: BLAS starts no threads for so few
FEW = 64  # rows; with more of them a product has work enough for threads
Matrix64 = NDArray[np.float64]


class Sliced(Protocol):
    """A long vector of float64 numbers, on disk perhaps, of which one asks for a piece."""

    def copy_to(self, out: Matrix64, part: slice) -> None:
        """Put the numbers of this piece there."""
        ...


class InMemory:
    """A vector in memory as such a vector."""

    def __init__(self, vector: NDArray[np.floating]) -> None:
        self._vector = vector

    def copy_to(self, out: Matrix64, part: slice) -> None:
        """Put the numbers of this piece there."""
        out[:] = self._vector[part]


def stretches(trained: Sequence[slice], rows: int) -> Iterator[slice]:
    """The trained coordinates, cut so that ``rows`` rows of each piece are one block."""
    width = max(256, BLOCK // max(rows, 1))
    for stretch in trained:
        for start in range(stretch.start, stretch.stop, width):
            yield slice(start, min(start + width, stretch.stop))


class _BlasThreads:
    """How many blocks of code ask for one thread at the moment; the first sets it, the last sets it back."""

    lock, asking = Lock(), 0
    limits: Any = None
    controller: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Inside this block a product runs in the thread that asks for it.

    A thread of BLAS waits for its next product by spinning, and a product for all of its threads: on a busy
    machine that costs ten times the work. Threads of our own, each with a product of its own, do neither.
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
    """What ``work`` gives of the first and of the second half of the parts, each in a thread of its own."""
    middle = (len(parts) + 1) // 2
    if middle == len(parts):
        return [work(parts)]
    with ThreadPoolExecutor(1) as beside:
        second = beside.submit(work, parts[middle:])
        return [work(parts[:middle]), second.result()]


def add_products(gram: Matrix64, block: Matrix64) -> None:
    """Gram += block·blockᵀ, a few columns at a time: of few rows, so few that BLAS starts no threads."""
    rows = len(block)
    width = PRODUCT // (rows * (rows + 1)) if rows <= FEW else block.shape[1]
    for start in range(0, block.shape[1], width):
        columns = block[:, start : start + width]
        gram += columns @ columns.T


def norm(vector: NDArray[np.floating], trained: Sequence[slice] | None = None) -> float:
    """‖vector‖₂ over the trained coordinates (all, unless told)."""
    total = 0.0
    for part in stretches(trained or (slice(0, len(vector)),), BLOCK // DOT):
        block = vector[part].astype(np.float64)
        total += float(np.dot(block, block))
    return float(np.sqrt(total))


def distance(left: Vector, right: Vector, trained: Sequence[slice]) -> float:
    """‖left - right‖₂ over the trained coordinates, without a third vector."""
    total = 0.0
    for part in stretches(trained or (slice(0, len(left)),), BLOCK // DOT):
        block = (left[part] - right[part]).astype(np.float64)
        total += float(np.dot(block, block))
    return float(np.sqrt(total))


def weighted_mean(
    vectors: NDArray[np.float32], weights: Matrix64, trained: Sequence[slice], beside: Executor
) -> Matrix64:
    """Σ p_c·u_c with p = weights / Σ weights, on two cores; zero outside the trained coordinates."""
    mean = np.zeros(vectors.shape[1])
    rows = np.flatnonzero(weights)
    shares = weights[rows] / weights.sum() if len(rows) else weights[rows]
    parts = list(stretches(trained, len(vectors)))

    def fill(some: Sequence[slice]) -> None:
        for part in some:
            mean[part] = shares @ vectors[rows, part].astype(np.float64)

    other = beside.submit(fill, parts[len(parts) // 2 :])
    fill(parts[: len(parts) // 2])
    other.result()
    return mean


def is_finite(vector: NDArray[np.floating]) -> bool:
    """Whether every number is finite: one product tells of most vectors, else block by block."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.dot(vector, vector)):
            return True
    blocks = range(0, len(vector), BLOCK)
    return all(bool(np.isfinite(vector[start : start + BLOCK]).all()) for start in blocks)
