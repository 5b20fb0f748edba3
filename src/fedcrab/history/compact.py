"""Updates in a few bits: blocks of 256 numbers, each with one scale, symmetric around zero.

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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError, DamagedError, shown
from fedcrab.types import Layout

BLOCK = 256  # numbers that share a scale
BITS = (2, 4, 8)  # a byte holds a whole number of codes
TINY = 2.0**-100  # a row without a larger number is zero: 1/s must be a float32
HUGE = 1e38  # above it s·Q may round to infinity
ROUNDING = 2.0**-22  # of the largest number: what u/s and s·code lose in float32
AT_ONCE = 2**8  # blocks packed together: they stay in the cache
Bytes = NDArray[np.uint8]
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Packing:
    """How the rows of one layout are packed."""

    layout: Layout
    bits: int = 4

    def __post_init__(self) -> None:
        check_bits(self.bits)

    @property
    def levels(self) -> int:
        """Q: codes go from -Q to Q."""
        return int(2 ** (self.bits - 1) - 1)

    @property
    def trained(self) -> int:
        """How many numbers of a row are quantised."""
        return sum(part.stop - part.start for part in self.layout.trained())

    @property
    def blocks(self) -> int:
        """How many scales a row has."""
        return -(-self.trained // BLOCK)

    @property
    def width(self) -> int:
        """The bytes of a packed row."""
        codes = self.blocks * BLOCK * self.bits // 8
        return 8 + 2 * self.blocks + codes + 4 * (self.layout.size - self.trained)

    def pack(self, rows: Rows) -> Bytes:
        """Each row in ``width`` bytes; rows must be finite."""
        packed = np.zeros((len(rows), self.width), np.uint8)
        place, codes = 8 + 2 * self.blocks, self.blocks * BLOCK * self.bits // 8
        trained, buffers = self._trained_places(), self._buffer_places()
        numbers = np.zeros((self.blocks, BLOCK), np.float32)  # the last block perhaps filled up with zeros
        scratch = (np.empty_like(numbers[:AT_ONCE]), np.empty_like(numbers[:AT_ONCE]))
        for row, out in zip(rows, packed, strict=True):
            numbers.reshape(-1)[: self.trained] = row if trained is None else row[trained]
            scales, codes_of = out[8:place].view("<f2"), out[place : place + codes]
            largest, error = self._pack_row(numbers, scales, codes_of, scratch)
            out[:8].view("<f4")[:] = largest, error
            out[place + codes :] = np.ascontiguousarray(row[buffers], "<f4").view(np.uint8)
        return packed

    def _pack_row(
        self, numbers: Rows, scales: NDArray[np.float16], codes: Bytes, scratch: tuple[Rows, Rows]
    ) -> tuple[np.float32, np.float32]:
        """Fill in the scales and codes of a row's blocks; gives its largest number and its error's length."""
        highest = np.empty(len(numbers))
        for at in range(0, len(numbers), AT_ONCE):
            highest[at : at + AT_ONCE] = _highest(numbers[at : at + AT_ONCE], scratch[0])
        largest = float(highest.max(initial=0))
        if largest < TINY:  # zeros have the code Q, so that a scale has nothing to do with it
            codes[:] = self._byte_of_zeros()
            return np.float32(0), _rounded_up(float(np.linalg.norm(numbers.astype(np.float64))))
        scales[:] = _float16_up(highest / (largest * self.levels))
        steps, squares = scales.astype(np.float64) * largest, 0.0
        width = BLOCK * self.bits // 8  # bytes of a block
        for at in range(0, len(numbers), AT_ONCE):
            some, place = slice(at, at + AT_ONCE), slice(at * width, (at + AT_ONCE) * width)
            squares += self._pack_blocks(numbers[some], steps[some], codes[place], scratch)
        rounding = largest * ROUNDING * float(np.sqrt(self.trained))
        return np.float32(largest), _rounded_up(float(np.sqrt(squares)) + rounding)

    def _pack_blocks(
        self, piece: Rows, steps: NDArray[np.float64], codes: Bytes, scratch: tuple[Rows, Rows]
    ) -> float:
        """Σ (q - u)² of these blocks, their codes filled in."""
        shifted, rounded = (space[: len(piece)] for space in scratch)
        inverse = np.divide(1, steps, out=np.zeros_like(steps), where=steps > 0).astype(np.float32)
        np.multiply(piece, inverse[:, None], out=shifted)
        np.rint(shifted, out=rounded)
        shifted -= rounded
        squares = np.einsum("bi,bi->b", shifted, shifted).astype(np.float64)
        rounded += np.float32(self.levels)
        codes[:] = _joined(rounded.astype(np.uint8).reshape(-1), self.bits)
        return float(squares @ steps**2)

    def _byte_of_zeros(self) -> int:
        return sum(self.levels << shift for shift in range(0, 8, self.bits))

    def unpack(self, packed: Bytes) -> Rows:
        """The rows q, a float32 each, and buffers as they were."""
        self.check(packed)
        rows = np.empty((len(packed), self.layout.size), np.float32)
        trained, buffers = self._trained_places(), self._buffer_places()
        for stored, row in zip(packed, rows, strict=True):
            row[slice(None) if trained is None else trained] = self._unpack_row(stored)
            row[buffers] = stored[self.width - 4 * len(buffers) :].copy().view("<f4")
        return rows

    def _unpack_row(self, stored: Bytes) -> Rows:
        place, codes = 8 + 2 * self.blocks, self.blocks * BLOCK * self.bits // 8
        largest = float(stored[:4].copy().view("<f4")[0])
        steps = stored[8:place].copy().view("<f2").astype(np.float64) * largest
        numbers = self._numbers_of_bytes().take(stored[place : place + codes]).view(np.float32)
        with np.errstate(over="ignore"):
            numbers.reshape(-1, BLOCK)[:] *= steps.astype(np.float32)[:, None]
        if largest > HUGE:
            np.clip(numbers, -largest, largest, out=numbers)
        return numbers[: self.trained]

    def _numbers_of_bytes(self) -> NDArray[np.generic]:
        """For each byte the codes in it, less Q, as float32 side by side in one item."""
        shifts = np.arange(8 - self.bits, -1, -self.bits)
        codes = (np.arange(256)[:, None] >> shifts) & (2**self.bits - 1)
        side_by_side = {2: np.complex128, 4: np.float64, 8: np.float32}[self.bits]
        numbers: NDArray[np.generic] = (codes - self.levels).astype(np.float32).view(side_by_side)
        return numbers.reshape(-1)

    def errors(self, packed: Bytes) -> NDArray[np.float64]:
        """‖q - u‖ of each row over the trained numbers, as measured when it was packed."""
        self.check(packed)
        return np.ascontiguousarray(packed[:, 4:8]).view("<f4").reshape(-1).astype(np.float64)

    def check(self, packed: Bytes) -> None:
        """Whatever wrote these bytes, they give finite numbers."""
        if packed.ndim != 2 or packed.shape[1] != self.width or packed.dtype != np.uint8:
            raise DamagedError(f"packed updates must be rows of {self.width} bytes, got {packed.shape}")
        heads = np.ascontiguousarray(packed[:, :8]).view("<f4")
        scales = np.ascontiguousarray(packed[:, 8 : 8 + 2 * self.blocks]).view("<f2")
        tail = self.width - 4 * (self.layout.size - self.trained)
        buffers = np.ascontiguousarray(packed[:, tail:]).view("<f4")
        sound = (heads >= 0).all() and (scales >= 0).all() and (scales <= 1).all()
        if not (sound and np.isfinite(heads).all() and np.isfinite(buffers).all()):
            raise DamagedError("packed updates have a scale or a buffer that is no finite number")

    def _trained_places(self) -> NDArray[np.intp] | None:
        """Where the trained numbers are; None where that is everywhere."""
        if self.trained == self.layout.size:
            return None
        return np.concatenate([np.arange(p.start, p.stop) for p in self.layout.trained()] or [np.arange(0)])

    def _buffer_places(self) -> NDArray[np.intp]:
        trained = self._trained_places()
        if trained is None:
            return np.arange(0)
        return np.setdiff1d(np.arange(self.layout.size), trained)


def check_bits(bits: int) -> None:
    """A code has 2, 4 or 8 bits."""
    if not isinstance(bits, int) or isinstance(bits, bool) or bits not in BITS:
        raise ConfigError(f"bits must be 2, 4 or 8, got {shown(bits)}")


def _highest(piece: Rows, scratch: Rows) -> Rows:
    """The largest |u_i| of each block."""
    found: Rows = np.abs(piece, out=scratch[: len(piece)]).max(axis=1)
    return found


def _float16_up(values: NDArray[np.float64]) -> NDArray[np.float16]:
    """The least float16 that is not below each value, of 0 to 1."""
    nearest = values.astype(np.float16)
    return np.where(nearest < values, np.nextafter(nearest, np.float16(2)), nearest)


def _rounded_up(value: float) -> np.float32:
    """A float32 a little above a value, for what float32 sums lost; at most the largest there is."""
    most = np.finfo(np.float32).max
    return np.nextafter(np.float32(min(value * (1 + 1e-5), float(most))), most) if value else np.float32(0)


def _joined(codes: Bytes, bits: int) -> Bytes:
    """Codes of ``bits`` side by side in bytes."""
    while bits < 8:  # neighbours, read as one number of 16 bits, the first in its low byte
        pairs = codes.view("<u2")
        codes = ((pairs << np.uint16(bits)) | (pairs >> np.uint16(8))).astype(np.uint8)
        bits *= 2
    return codes
