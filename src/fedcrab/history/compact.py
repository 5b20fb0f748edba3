"""Updates in a few bits per number: blocks of 256 numbers, each with one scale, symmetric around zero.

    s = max |u_i| / Q,  Q = 2^(bits-1) - 1;      code_i = round(u_i / s) in -Q … Q;      q_i = s · code_i

so that |q_i - u_i| ≤ s/2 in every block. s is stored as a float16 share of the row's largest number, rounded
up: no number is clipped, and neither a huge nor a tiny row can leave float16's range. A row whose largest
number is below 2⁻¹⁰⁰ is stored as zeros. Buffers (numbers that are not trained) are kept exactly.

A packed row is bytes, little-endian:

    largest |u|    float32
    ‖q - u‖        float32, over the trained numbers, measured when it was packed and rounded up
    scales         float16, one per block of trained numbers, the last block perhaps short
    codes          ``bits`` each, code + Q, the first of a byte in its highest bits; padded with zeros
    buffers        float32
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError, DamagedError, shown
from fedcrab.types import Layout

BLOCK = 256  # numbers that share a scale
BITS = (2, 4, 8)  # a byte holds a whole number of codes
TINY = 2.0**-100  # a row without a larger number is stored as zeros, because 1/s must be a float32
HUGE = 1e38  # above it s·Q may round to infinity
ROUNDING = 2.0**-22  # of the largest number: what float32 loses in u/s and s·code
AT_ONCE = 2**9  # blocks packed together, so that they stay in the cache
TOGETHER = 2**20  # numbers of the rows whose scales are computed together
Bytes = NDArray[np.uint8]
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Packing:
    """Packs the rows of one layout."""

    layout: Layout
    bits: int = 4

    def __post_init__(self) -> None:
        check_bits(self.bits)

    @cached_property
    def levels(self) -> int:
        """Q: codes are between -Q and Q."""
        return int(2 ** (self.bits - 1) - 1)

    @cached_property
    def trained(self) -> int:
        """How many numbers per row are quantised."""
        return sum(part.stop - part.start for part in self.layout.trained())

    @cached_property
    def blocks(self) -> int:
        """How many scales a row has."""
        return -(-self.trained // BLOCK)

    @cached_property
    def width(self) -> int:
        """How many bytes a packed row has."""
        codes = self.blocks * BLOCK * self.bits // 8
        return 8 + 2 * self.blocks + codes + 4 * (self.layout.size - self.trained)

    def pack(self, *parts: Rows) -> Bytes:
        """Pack each row of these matrices, in order, into ``width`` bytes. Rows must be finite."""
        packed = np.zeros((sum(map(len, parts)), self.width), np.uint8)
        at_once, scratch, done = max(1, TOGETHER // max(self.layout.size, 1)), _Scratch.empty(), 0
        for part in parts:
            for at in range(0, len(part), at_once):
                rows = part[at : at + at_once]
                self._pack_rows(rows, packed[done : done + len(rows)], scratch)
                done += len(rows)
        return packed

    def _pack_rows(self, rows: Rows, packed: Bytes, scratch: _Scratch) -> None:
        """Fill in the bytes of some rows."""
        numbers = self._trained_numbers(rows)
        pieces, highest = list(_pieces(numbers)), np.zeros((len(rows), self.blocks))
        for place, piece in pieces:
            highest[place] = _highest(piece, scratch.one)
        largest = highest.max(axis=1, initial=0)
        largest[largest < TINY] = 0  # such rows are zeros
        scales, steps = self._scales(highest, largest)
        inverse = np.divide(1, steps, out=np.zeros_like(steps), where=steps > 0).astype(np.float32)
        codes = self._codes(packed).reshape(len(rows), self.blocks, BLOCK * self.bits // 8)
        squares = np.empty((len(rows), self.blocks), np.float32)
        for place, piece in pieces:
            squares[place] = self._pack_blocks(piece, inverse[place], codes[place], scratch)
        packed[:, :4].view("<f4")[:, 0] = largest
        packed[:, 4:8].view("<f4")[:, 0] = self._errors(numbers, largest, steps, squares)
        packed[:, 8 : 8 + 2 * self.blocks].view("<f2")[:] = scales
        buffers = np.ascontiguousarray(rows[:, self._buffer_places], "<f4")
        packed[:, self.width - 4 * buffers.shape[1] :] = buffers.view(np.uint8)

    def _scales(
        self, highest: NDArray[np.float64], largest: NDArray[np.float64]
    ) -> tuple[NDArray[np.float16], NDArray[np.float64]]:
        """Return the scales of each row's blocks as stored, and the steps s that they encode."""
        most = largest[:, None] * self.levels
        shares = np.divide(highest, most, out=np.zeros_like(highest), where=most > 0)
        scales = _float16_up(shares)
        return scales, scales.astype(np.float64) * largest[:, None]

    def _pack_blocks(self, piece: Rows, inverse: Rows, codes: Bytes, scratch: _Scratch) -> Rows:
        """Fill in the codes of these blocks; return Σ ((q - u) / s)² of each."""
        scaled, rounded = scratch.one[: len(piece)], scratch.two[: len(piece)]
        small = scratch.codes[: len(piece)]
        np.multiply(piece, inverse[:, None], out=scaled)
        np.rint(scaled, out=rounded)
        np.subtract(scaled, rounded, out=scaled)
        np.copyto(small.view(np.int8), rounded, casting="unsafe")
        # Modulo 256: the codes of a byte, joined, go from -Q … Q to 0 … 2Q all at once.
        np.add(_joined(small, self.bits), np.uint8(self._byte_of_zeros), out=codes)
        squares: Rows = np.matmul(scaled[:, None, :], scaled[:, :, None]).reshape(-1)
        return squares

    def _errors(
        self, numbers: Rows, largest: NDArray[np.float64], steps: NDArray[np.float64], squares: Rows
    ) -> Rows:
        """Return ‖q - u‖ of each row, rounded up."""
        sums = np.matmul(squares.astype(np.float64)[:, None, :], (steps**2)[:, :, None]).reshape(-1)
        errors = np.sqrt(sums) + largest * ROUNDING * float(np.sqrt(self.trained))
        for place in np.flatnonzero(largest == 0):
            errors[place] = np.linalg.norm(numbers[place].astype(np.float64))
        return _rounded_up(errors)

    def _codes(self, packed: Bytes) -> Bytes:
        """Return a view of the codes in packed rows, or in one of them."""
        place = 8 + 2 * self.blocks
        return packed[..., place : place + self.blocks * BLOCK * self.bits // 8]

    @cached_property
    def _byte_of_zeros(self) -> int:
        return sum(self.levels << shift for shift in range(0, 8, self.bits))

    def unpack(self, packed: Bytes) -> Rows:
        """Return the rows q as float32; buffers are exact."""
        self.check(packed)
        rows = np.empty((len(packed), self.layout.size), np.float32)
        parts, buffers = self.layout.trained(), self._buffer_places
        for stored, row in zip(packed, rows, strict=True):
            numbers, done = self._unpack_row(stored), 0
            for part in parts:
                row[part] = numbers[done : done + part.stop - part.start]
                done += part.stop - part.start
            row[buffers] = stored[self.width - 4 * len(buffers) :].copy().view("<f4")
        return rows

    def _unpack_row(self, stored: Bytes) -> Rows:
        largest = float(stored[:4].copy().view("<f4")[0])
        steps = stored[8 : 8 + 2 * self.blocks].copy().view("<f2").astype(np.float64) * largest
        numbers = self._numbers_of_bytes().take(self._codes(stored)).view(np.float32)
        with np.errstate(over="ignore"):
            numbers.reshape(-1, BLOCK)[:] *= steps.astype(np.float32)[:, None]
        if largest > HUGE:
            np.clip(numbers, -largest, largest, out=numbers)
        return numbers[: self.trained]

    def _numbers_of_bytes(self) -> NDArray[np.generic]:
        """Return, for each byte, its codes minus Q as float32, side by side in one item."""
        shifts = np.arange(8 - self.bits, -1, -self.bits)
        codes = (np.arange(256)[:, None] >> shifts) & (2**self.bits - 1)
        side_by_side = {2: np.complex128, 4: np.float64, 8: np.float32}[self.bits]
        numbers: NDArray[np.generic] = (codes - self.levels).astype(np.float32).view(side_by_side)
        return numbers.reshape(-1)

    def errors(self, packed: Bytes) -> NDArray[np.float64]:
        """Return ‖q - u‖ of each row over the trained numbers, as measured when it was packed."""
        self.check(packed)
        return np.ascontiguousarray(packed[:, 4:8]).view("<f4").reshape(-1).astype(np.float64)

    def check(self, packed: Bytes) -> None:
        """Raise ``DamagedError`` unless these bytes unpack to finite numbers."""
        if packed.ndim != 2 or packed.shape[1] != self.width or packed.dtype != np.uint8:
            raise DamagedError(f"packed updates must be rows of {self.width} bytes, got {packed.shape}")
        heads = np.ascontiguousarray(packed[:, :8]).view("<f4")
        scales = np.ascontiguousarray(packed[:, 8 : 8 + 2 * self.blocks]).view("<f2")
        tail = self.width - 4 * (self.layout.size - self.trained)
        buffers = np.ascontiguousarray(packed[:, tail:]).view("<f4")
        sound = (heads >= 0).all() and (scales >= 0).all() and (scales <= 1).all()
        if not (sound and np.isfinite(heads).all() and np.isfinite(buffers).all()):
            raise DamagedError("packed updates have a scale or a buffer that is not a finite number")

    def _trained_numbers(self, rows: Rows) -> Rows:
        if self.trained == self.layout.size:
            return np.ascontiguousarray(rows, np.float32)
        parts = self.layout.trained()
        return np.concatenate([rows[:, part] for part in parts] or [rows[:, :0]], axis=1, dtype=np.float32)

    @cached_property
    def _buffer_places(self) -> NDArray[np.intp]:
        """Where the buffers are."""
        buffers = np.ones(self.layout.size, bool)
        for part in self.layout.trained():
            buffers[part] = False
        return np.flatnonzero(buffers)


def check_bits(bits: int) -> None:
    """Raise ``ConfigError`` unless a code has 2, 4 or 8 bits."""
    if not isinstance(bits, int) or isinstance(bits, bool) or bits not in BITS:
        raise ConfigError(f"bits must be 2, 4 or 8, got {shown(bits)}")


@dataclass(frozen=True, slots=True)
class _Scratch:
    """Reused memory for the blocks that are packed together, so that it stays in the cache."""

    one: Rows
    two: Rows
    codes: Bytes

    @classmethod
    def empty(cls) -> _Scratch:
        shape = (AT_ONCE, BLOCK)
        return cls(np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty(shape, np.uint8))


Place = tuple[int | slice, int | slice]  # of some blocks in a table with a row per row, a column per block


def _pieces(numbers: Rows) -> Iterator[tuple[Place, Rows]]:
    """Yield blocks, AT_ONCE at most, and where they are; a row's short last block is padded with zeros.

    The short blocks of all rows come together at the end, so that nothing else has to be copied.
    """
    whole, rest = divmod(numbers.shape[1], BLOCK)
    for row, own in enumerate(numbers):
        for at in range(0, whole, AT_ONCE):
            stop = min(at + AT_ONCE, whole)
            yield (row, slice(at, stop)), own[at * BLOCK : stop * BLOCK].reshape(-1, BLOCK)
    for at in range(0, len(numbers) if rest else 0, AT_ONCE):
        short = numbers[at : at + AT_ONCE, whole * BLOCK :]
        filled = np.zeros((len(short), BLOCK), np.float32)
        filled[:, :rest] = short
        yield (slice(at, at + len(short)), whole), filled


def _highest(piece: Rows, scratch: Rows) -> Rows:
    """Return the largest |u_i| of each block. Positive floats sort like their bits."""
    bits = np.abs(piece, out=scratch[: len(piece)]).view(np.int32)
    found: Rows = np.maximum.reduce(bits, axis=1).view(np.float32)
    return found


def _float16_up(values: NDArray[np.float64]) -> NDArray[np.float16]:
    """Return the smallest float16 not below each value between 0 and 1: the next one has the next bits."""
    nearest = values.astype(np.float16)
    return (nearest.view(np.uint16) + (nearest < values)).astype(np.uint16).view(np.float16)


def _rounded_up(values: NDArray[np.float64]) -> Rows:
    """Return a float32 slightly above each value, to cover what float32 sums lost; never infinite."""
    most = np.finfo(np.float32).max
    above: Rows = np.nextafter(np.minimum(values * (1 + 1e-5), float(most)).astype(np.float32), most)
    return np.where(values > 0, above, np.float32(0))


def _joined(codes: Bytes, bits: int) -> Bytes:
    """Codes of ``bits`` side by side in bytes, the first of each pair in the high bits; modulo 256.

    A pair as one number is first + 2⁸·second; the high byte of its product is 2^bits·first + second.
    """
    while bits < 8:
        pairs = codes.view("<u2") * np.uint16(1 + 2 ** (8 + bits))
        pairs >>= np.uint16(8)
        codes = pairs.astype(np.uint8)
        bits *= 2
    return codes
