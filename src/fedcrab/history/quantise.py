"""Numbers in a few bits: blocks of 256 numbers, each with one scale, symmetric around zero.

    s = max |u_i| / Q,  Q = 2^(bits-1) - 1;      code_i = round(u_i / s) in -Q … Q;      q_i = s · code_i

so that |q_i - u_i| ≤ s/2 in every block. s is stored as a float16 share of the row's largest number, rounded
up: no number is clipped, and neither a huge nor a tiny row can leave float16's range. A row whose largest
number is below 2⁻¹⁰⁰ is stored as zeros.

Without the kernel, every step is one call for many blocks, in memory that is used again. Two of the calls are
not the obvious ones, because these are faster: ``reduceat`` instead of a maximum along an axis, and a scale
that is copied to each number of its block before the product, instead of a product with a column.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from ctypes import CDLL, c_int, c_size_t
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcrab.native import address, library
from fedcrab.native.rows import plain_rows, rows_at

BLOCK = 256  # numbers that share a scale
TINY = 2.0**-100  # a row without a larger number is stored as zeros, because 1/s must be a float32
ROUNDING = 2.0**-22  # of the largest number: what float32 loses in u/s and s·code
AT_ONCE = 2**10  # blocks per call: 1 MB of numbers; with fewer, the calls themselves cost more
Bytes = NDArray[np.uint8]
Rows = NDArray[np.float32]


def levels(bits: int) -> int:
    """Q: codes are between -Q and Q."""
    return int(2 ** (bits - 1) - 1)


_MOST = np.finfo(np.float32).max
_ZEROS = {bits: np.uint8(sum(levels(bits) << shift for shift in range(0, 8, bits))) for bits in (2, 4, 8)}
_STARTS = np.arange(0, AT_ONCE * BLOCK, BLOCK)


class Quantised(NamedTuple):
    """What belongs to the codes of some rows."""

    largest: NDArray[np.float64]  # |u_i| of each row, 0 for a row of zeros
    errors: Rows  # ‖q - u‖ of each row, rounded up
    scales: NDArray[np.float16]  # of each block of each row, as shares of the largest number


class _Scratch(threading.local):
    """Memory for the blocks of one call, one per thread."""

    def __init__(self) -> None:
        self.one = np.empty(AT_ONCE * BLOCK, np.float32)
        self.two = np.empty(AT_ONCE * BLOCK, np.float32)
        self.codes = np.empty(AT_ONCE * BLOCK, np.uint8)


_SCRATCH = _Scratch()


def quantise(matrices: Sequence[Rows], bits: int, codes: Bytes) -> Quantised:
    """Fill in the codes of each row of these matrices, in order; return what belongs to them.

    A code takes ``bits``, as code + Q, the first of a byte in its highest bits. Rows must be finite. A short
    last block is filled up with zeros, so a row of ``codes`` has whole blocks.
    """
    width = matrices[0].shape[1]
    native = library()
    found = _by_kernel(native, matrices, bits, codes) if native else _by_numpy(matrices, bits, codes)
    largest, scales, squares = found
    steps = scales * largest[:, None]
    steps *= steps
    errors = np.sqrt(np.matmul(squares.astype(np.float64)[:, None, :], steps[:, :, None]).reshape(-1))
    errors += largest * (ROUNDING * float(np.sqrt(width)))
    if not largest.all():
        _measure_zeros(matrices, largest, errors)
    return Quantised(largest, _rounded_up(errors), scales)


# The largest |u_i| of each row, the scale of each block, and Σ ((q - u) / s)² of each block.
Found = tuple[NDArray[np.float64], NDArray[np.float16], Rows]


def _by_kernel(native: CDLL, matrices: Sequence[Rows], bits: int, codes: Bytes) -> Found:
    """Fill in the codes by a kernel, which goes over a row twice: for the largest, and for the codes."""
    rows, width = sum(map(len, matrices)), matrices[0].shape[1]
    blocks = rows, -(-width // BLOCK)
    largest, scales, squares = np.empty(rows), np.empty(blocks, np.float16), np.empty(blocks, np.float32)
    done = 0
    for matrix in map(plain_rows, matrices):
        native.quantise_rows(
            *(*rows_at(matrix), c_size_t(width), c_int(bits)),
            *(address(codes[done:]), c_size_t(codes.strides[0])),
            *(address(found[done:]) for found in (largest, scales, squares)),
        )
        done += len(matrix)
    return largest, scales, squares


def _by_numpy(matrices: Sequence[Rows], bits: int, codes: Bytes) -> Found:
    """Fill in the codes of many blocks at once."""
    rows, width = sum(map(len, matrices)), matrices[0].shape[1]
    count = -(-width // BLOCK)
    pieces, highest = list(_pieces(matrices)), np.zeros((rows, count))
    for place, numbers in pieces:
        highest[place] = _highest(numbers)
    largest = highest.max(axis=1, initial=0)
    largest[largest < TINY] = 0  # such rows are zeros
    highest /= np.where(largest > 0, largest * levels(bits), np.inf)[:, None]
    scales = _float16_up(highest)
    steps = scales * largest[:, None]
    inverse = np.divide(1, np.where(steps > 0, steps, np.inf), dtype=np.float64).astype(np.float32)
    blocks = codes.reshape(rows, count, BLOCK * bits // 8)
    squares = np.empty(highest.shape, np.float32)
    for place, numbers in pieces:
        squares[place] = _quantise_blocks(numbers, inverse[place], bits, blocks[place])
    return largest, scales, squares


Place = tuple[slice, slice]  # of some blocks in a table with one row per row and one column per block


def _pieces(matrices: Sequence[Rows]) -> Iterator[tuple[Place, Rows]]:
    """Yield what to process at once, several whole rows or a part of one, and its place."""
    before = 0
    for matrix in matrices:
        blocks = -(-matrix.shape[1] // BLOCK)
        together = max(1, AT_ONCE // max(blocks, 1))
        for first in range(0, len(matrix), together):
            some = matrix[first : first + together]
            rows = slice(before + first, before + first + len(some))
            for start in range(0, blocks, AT_ONCE):
                stop = min(start + AT_ONCE, blocks)
                yield (rows, slice(start, stop)), some[:, start * BLOCK : stop * BLOCK]
        before += len(matrix)


def _highest(numbers: Rows) -> Rows:
    """Return the largest |u_i| of each block. Positive floats sort like their bits."""
    rows, blocks = len(numbers), -(-numbers.shape[1] // BLOCK)
    sizes = _SCRATCH.one[: rows * blocks * BLOCK]
    np.abs(numbers, out=_filled_up(sizes, numbers))
    found: Rows = np.maximum.reduceat(sizes.view(np.int32), _STARTS[: rows * blocks]).view(np.float32)
    return found.reshape(rows, blocks)


def _quantise_blocks(numbers: Rows, inverse: Rows, bits: int, codes: Bytes) -> Rows:
    """Fill in the codes of these blocks; return Σ ((q - u) / s)² of each."""
    count = inverse.size * BLOCK
    scaled, rounded, small = _SCRATCH.one[:count], _SCRATCH.two[:count], _SCRATCH.codes[:count]
    np.copyto(scaled.reshape(*inverse.shape, BLOCK), inverse[:, :, None])
    place = _filled_up(scaled, numbers)
    np.multiply(numbers, place, out=place)
    np.rint(scaled, out=rounded)
    np.subtract(scaled, rounded, out=scaled)
    np.copyto(small.view(np.int8), rounded, casting="unsafe")
    # Modulo 256: the codes of a byte, joined, go from -Q … Q to 0 … 2Q all at once.
    np.add(_joined(small, rounded.view(np.uint8), bits).reshape(codes.shape), _ZEROS[bits], out=codes)
    np.multiply(scaled, scaled, out=scaled)
    return _sums_of_blocks(scaled.reshape(-1, BLOCK)).reshape(inverse.shape)


def _sums_of_blocks(numbers: Rows) -> Rows:
    """Return the sum of each block: its halves are added until one number is left. Overwrites the blocks."""
    half = BLOCK
    while half > 1:
        half //= 2
        numbers[:, :half] += numbers[:, half : 2 * half]
    return numbers[:, 0]


def _filled_up(scratch: Rows, numbers: Rows) -> Rows:
    """Return the places of these numbers in a scratch of whole blocks; what is beyond them becomes zero."""
    width, places = numbers.shape[1], scratch.reshape(len(numbers), -1)
    if places.shape[1] == width:
        return places
    places[:, width:] = 0
    return places[:, :width]


def _joined(codes: Bytes, other: Bytes, bits: int) -> Bytes:
    """Codes of ``bits`` side by side in bytes, the first of each pair in the high bits; modulo 256.

    A pair as one number is first + 2⁸·second; the high byte of its product is 2^bits·first + second. Both
    arrays are overwritten.
    """
    while bits < 8:
        pairs = codes.view("<u2")
        pairs *= np.uint16(1 + 2 ** (8 + bits))
        pairs >>= np.uint16(8)
        np.copyto(other[: len(pairs)], pairs, casting="unsafe")
        codes, other = other[: len(pairs)], codes
        bits *= 2
    return codes


def dequantise(codes: Bytes, steps: Rows, bits: int, width: int) -> Rows:
    """Return the numbers s·code of each row of codes, the first ``width`` of them; ``steps`` has the s."""
    if native := library():
        numbers: Rows = np.empty((len(codes), width), np.float32)
        native.dequantise_rows(
            *(*rows_at(codes), address(steps), c_size_t(width), c_int(bits)),
            *(address(numbers), c_size_t(width)),
        )
        return numbers
    found = _numbers_of_bytes(bits).take(codes).view(np.float32).reshape(*steps.shape, BLOCK)
    with np.errstate(over="ignore"):
        found *= steps[:, :, None]
    return found.reshape(len(codes), -1)[:, :width]


@cache
def _numbers_of_bytes(bits: int) -> NDArray[np.generic]:
    """Return, for each byte, its codes minus Q as float32, side by side in one item."""
    shifts = np.arange(8 - bits, -1, -bits)
    codes = (np.arange(256)[:, None] >> shifts) & (2**bits - 1)
    side_by_side = {2: np.complex128, 4: np.float64, 8: np.float32}[bits]
    numbers: NDArray[np.generic] = (codes - levels(bits)).astype(np.float32).view(side_by_side)
    return numbers.reshape(-1)


def _measure_zeros(
    matrices: Sequence[Rows], largest: NDArray[np.float64], errors: NDArray[np.float64]
) -> None:
    """Fill in ‖u‖ as the error of each row that is stored as zeros."""
    rows = (row for matrix in matrices for row in matrix)
    for place, row in enumerate(rows):
        if not largest[place]:
            errors[place] = np.linalg.norm(row.astype(np.float64))


def _float16_up(values: NDArray[np.float64]) -> NDArray[np.float16]:
    """Return the smallest float16 not below each value between 0 and 1: the next one has the next bits."""
    nearest = values.astype(np.float16)
    bits = nearest.view(np.uint16)
    bits += nearest < values
    return nearest


def _rounded_up(values: NDArray[np.float64]) -> Rows:
    """Return a float32 slightly above each value, to cover what float32 sums lost; never infinite."""
    above: Rows = np.nextafter(np.minimum(values * (1 + 1e-5), _MOST).astype(np.float32), _MOST)
    return np.where(values > 0, above, np.float32(0))
