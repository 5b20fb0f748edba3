"""Updates in a few bits per number (see :mod:`fedcrab.history.quantise`); buffers are kept exactly.

A packed row is bytes, little-endian:

    largest |u|    float32
    ‖q - u‖        float32, over the trained numbers, measured when it was packed and rounded up
    scales         float16, one per block of trained numbers, the last block perhaps short
    codes          ``bits`` each, code + Q, the first of a byte in its highest bits; padded with zeros
    buffers        float32
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError, DamagedError, shown
from fedcrab.history.quantise import BLOCK, Bytes, Rows, dequantise, quantise
from fedcrab.types import Layout

BITS = (2, 4, 8)  # a byte holds a whole number of codes
HUGE = 1e38  # above it s·Q may round to infinity
TOGETHER = 2**22  # numbers of the rows that are packed together


@dataclass(frozen=True)
class Packing:
    """Packs the rows of one layout."""

    layout: Layout
    bits: int = 4

    def __post_init__(self) -> None:
        check_bits(self.bits)

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
        packed = np.empty((sum(map(len, parts)), self.width), np.uint8)
        done = 0
        for some in self.packed(*parts):
            packed[done : done + len(some)] = some
            done += len(some)
        return packed

    def packed(self, *parts: Rows) -> Iterator[Bytes]:
        """Yield what :meth:`pack` returns a few rows at a time; the next ones overwrite them."""
        together = max(1, TOGETHER // max(self.layout.size, 1))
        space = np.empty((min(together, sum(map(len, parts))), self.width), np.uint8)
        for some in _groups(parts, together):
            packed = space[: sum(map(len, some))]
            self._fill(packed, some)
            yield packed

    def _fill(self, packed: Bytes, parts: Sequence[Rows]) -> None:
        """Fill in the bytes of some rows."""
        found = quantise([self._trained_numbers(rows) for rows in parts], self.bits, self._codes(packed))
        packed[:, :4].view("<f4")[:, 0] = found.largest
        packed[:, 4:8].view("<f4")[:, 0] = found.errors
        packed[:, 8 : 8 + 2 * self.blocks].view("<f2")[:] = found.scales
        if self.trained < self.layout.size:
            buffers = np.concatenate([rows[:, self._buffer_places] for rows in parts])
            tail = np.ascontiguousarray(buffers, "<f4").view(np.uint8)
            packed[:, self.width - tail.shape[1] :] = tail

    def _codes(self, packed: Bytes) -> Bytes:
        """Return a view of the codes in packed rows, or in one of them."""
        place = 8 + 2 * self.blocks
        return packed[..., place : place + self.blocks * BLOCK * self.bits // 8]

    def unpack(self, packed: Bytes) -> Rows:
        """Return the rows q as float32; buffers are exact."""
        self.check(packed)
        numbers = self._dequantised(packed)
        if self.trained == self.layout.size:
            return numbers
        rows, done = np.empty((len(packed), self.layout.size), np.float32), 0
        for part in self.layout.trained():
            rows[:, part] = numbers[:, done : done + part.stop - part.start]
            done += part.stop - part.start
        buffers = self._buffer_places
        rows[:, buffers] = np.ascontiguousarray(packed[:, self.width - 4 * len(buffers) :]).view("<f4")
        return rows

    def _dequantised(self, packed: Bytes) -> Rows:
        """Return the trained numbers of each row."""
        largest = np.ascontiguousarray(packed[:, :4]).view("<f4").astype(np.float64)
        scales = np.ascontiguousarray(packed[:, 8 : 8 + 2 * self.blocks]).view("<f2")
        with np.errstate(over="ignore"):
            steps = (scales * largest).astype(np.float32)
        numbers = dequantise(self._codes(packed), steps, self.bits, self.trained)
        for row, most in zip(numbers, largest[:, 0].tolist(), strict=True):
            if most > HUGE:
                np.clip(row, -most, most, out=row)
        return numbers

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


def _groups(parts: Sequence[Rows], most: int) -> Iterator[list[Rows]]:
    """Yield all rows in order, at most so many together."""
    group: list[Rows] = []
    for part in parts:
        rest = part
        while len(rest):
            some = rest[: most - sum(map(len, group))]
            group, rest = [*group, some], rest[len(some) :]
            if sum(map(len, group)) == most:
                yield group
                group = []
    if group:
        yield group
