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
from itertools import chain

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
Bytes = NDArray[np.uint8]
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Packing:
    """Packs the rows of one layout."""

    layout: Layout
    bits: int = 4

    def __post_init__(self) -> None:
        check_bits(self.bits)

    @property
    def levels(self) -> int:
        """Q: codes are between -Q and Q."""
        return int(2 ** (self.bits - 1) - 1)

    @property
    def trained(self) -> int:
        """How many numbers per row are quantised."""
        return sum(part.stop - part.start for part in self.layout.trained())

    @property
    def blocks(self) -> int:
        """How many scales a row has."""
        return -(-self.trained // BLOCK)

    @property
    def width(self) -> int:
        """How many bytes a packed row has."""
        codes = self.blocks * BLOCK * self.bits // 8
        return 8 + 2 * self.blocks + codes + 4 * (self.layout.size - self.trained)

    def pack(self, *parts: Rows) -> Bytes:
        """Pack each row of these matrices, in order, into ``width`` bytes. Rows must be finite."""
        packed = np.zeros((sum(map(len, parts)), self.width), np.uint8)
        place, codes = 8 + 2 * self.blocks, self.blocks * BLOCK * self.bits // 8
        trained, buffers, scratch = self._trained_places(), self._buffer_places(), _Scratch.empty()
        for row, out in zip(chain(*parts), packed, strict=True):
            numbers = np.ascontiguousarray(row if trained is None else row[trained], np.float32)
            scales, codes_of = out[8:place].view("<f2"), out[place : place + codes]
            largest, error = self._pack_row(numbers, scales, codes_of, scratch)
            out[:8].view("<f4")[:] = largest, error
            out[place + codes :] = np.ascontiguousarray(row[buffers], "<f4").view(np.uint8)
        return packed

    def _pack_row(
        self, numbers: Rows, scales: NDArray[np.float16], codes: Bytes, scratch: _Scratch
    ) -> tuple[np.float32, np.float32]:
        """Fill in a row's scales and codes; return its largest number and the norm of its error."""
        pieces = list(_pieces(numbers))
        highest = np.concatenate([_highest(piece, scratch.one) for piece in pieces]).astype(np.float64)
        largest = float(highest.max(initial=0))
        if largest < TINY:  # zeros have the code Q whatever the scale
            codes[:] = self._byte_of_zeros()
            return np.float32(0), _rounded_up(float(np.linalg.norm(numbers.astype(np.float64))))
        scales[:] = _float16_up(highest / (largest * self.levels))
        steps = scales.astype(np.float64) * largest
        inverse = np.divide(1, steps, out=np.zeros_like(steps), where=steps > 0).astype(np.float32)
        squares, width = np.empty(len(steps), np.float32), BLOCK * self.bits // 8  # bytes per block
        for at, piece in zip(range(0, len(steps), AT_ONCE), pieces, strict=True):
            some, place = slice(at, at + AT_ONCE), slice(at * width, (at + AT_ONCE) * width)
            squares[some] = self._pack_blocks(piece, inverse[some], codes[place], scratch)
        error = float(np.sqrt(squares.astype(np.float64) @ steps**2))
        return np.float32(largest), _rounded_up(error + largest * ROUNDING * float(np.sqrt(self.trained)))

    def _pack_blocks(self, piece: Rows, inverse: Rows, codes: Bytes, scratch: _Scratch) -> Rows:
        """Fill in the codes of these blocks; return Σ ((q - u) / s)² of each."""
        scaled, rounded = scratch.one[: len(piece)], scratch.two[: len(piece)]
        small = scratch.codes[: len(piece)]
        np.multiply(piece, inverse[:, None], out=scaled)
        np.rint(scaled, out=rounded)
        np.subtract(scaled, rounded, out=scaled)
        np.copyto(small.view(np.int8), rounded, casting="unsafe")
        np.add(small, np.uint8(self.levels), out=small)  # modulo 256: from -Q … Q to 0 … 2Q
        codes[:] = _joined(small.reshape(-1), self.bits)
        squares: Rows = np.matmul(scaled[:, None, :], scaled[:, :, None]).reshape(-1)
        return squares

    def _byte_of_zeros(self) -> int:
        return sum(self.levels << shift for shift in range(0, 8, self.bits))

    def unpack(self, packed: Bytes) -> Rows:
        """Return the rows q as float32; buffers are exact."""
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

    def _trained_places(self) -> NDArray[np.intp] | None:
        """Return where the trained numbers are; None if all numbers are trained."""
        if self.trained == self.layout.size:
            return None
        return np.concatenate([np.arange(p.start, p.stop) for p in self.layout.trained()] or [np.arange(0)])

    def _buffer_places(self) -> NDArray[np.intp]:
        trained = self._trained_places()
        if trained is None:
            return np.arange(0)
        return np.setdiff1d(np.arange(self.layout.size), trained)


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


def _pieces(numbers: Rows) -> Iterator[Rows]:
    """Yield a row's blocks, AT_ONCE at a time; the last block is padded with zeros."""
    for at in range(0, len(numbers), AT_ONCE * BLOCK):
        piece = numbers[at : at + AT_ONCE * BLOCK]
        if len(piece) % BLOCK:
            piece = np.concatenate([piece, np.zeros(-len(piece) % BLOCK, np.float32)])
        yield piece.reshape(-1, BLOCK)


def _highest(piece: Rows, scratch: Rows) -> Rows:
    """Return the largest |u_i| of each block. Positive floats sort like their bits."""
    bits = np.abs(piece, out=scratch[: len(piece)]).view(np.int32)
    found: Rows = np.maximum.reduce(bits, axis=1).view(np.float32)
    return found


def _float16_up(values: NDArray[np.float64]) -> NDArray[np.float16]:
    """Return the smallest float16 not below each value between 0 and 1: the next one has the next bits."""
    nearest = values.astype(np.float16)
    return (nearest.view(np.uint16) + (nearest < values)).astype(np.uint16).view(np.float16)


def _rounded_up(value: float) -> np.float32:
    """Return a float32 slightly above a value, to cover what float32 sums lost; never infinite."""
    most = np.finfo(np.float32).max
    return np.nextafter(np.float32(min(value * (1 + 1e-5), float(most))), most) if value else np.float32(0)


def _joined(codes: Bytes, bits: int) -> Bytes:
    """Pack codes of ``bits`` into bytes, the first of each pair in the high bits."""
    while (
        bits < 8
    ):  # a pair as one number: first + 2⁸·second; the product's high byte is 2^bits·first + second
        pairs = codes.view("<u2") * np.uint16(1 + 2 ** (8 + bits))
        pairs >>= np.uint16(8)
        codes = pairs.astype(np.uint8)
        bits *= 2
    return codes
