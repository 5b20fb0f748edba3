"""Float64 numbers in fewer bytes: rounded to some binary digits, and stored byte by byte in planes.

Plane k holds byte k of every number; the sign and the exponent come first. The first two planes are
repetitive if the numbers have similar sizes, and the last one may have unused bits. These are compressed by
zlib (Huffman coding only). The other planes are digits of the mantissa, which do not compress. With 52 digits
nothing is lost; with ``digits`` of them at most 2^(-digits - 1) of each number.
"""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import DamagedError

Numbers = NDArray[np.float64]
EXACT = 52  # binary digits of a float64 besides sign and exponent
LEAST = 20  # the minimum: four bytes are stored, one of them uncompressed
BEFORE = 12  # bits of sign and exponent
BYTES = 8
HEADER = struct.Struct("<QQQ")  # the compressed sizes of the first, the second and the last plane


def rounded(numbers: Numbers, digits: int) -> Numbers:
    """Return each number rounded to this many binary digits."""
    dropped = EXACT - digits
    numbers = np.ascontiguousarray(numbers, "<f8")
    if not dropped:
        return numbers
    half, mask = np.uint64(1 << (dropped - 1)), np.uint64(2**64 - (1 << dropped))
    return np.asarray(((numbers.view("<u8") + half) & mask).view("<f8"))


def encode(numbers: Numbers, digits: int) -> bytes:
    """Return these numbers, already :func:`rounded` to ``digits``, in as few bytes as possible."""
    table = np.ascontiguousarray(numbers, "<f8").view(np.uint8).reshape(-1, BYTES)
    planes = [np.ascontiguousarray(table[:, BYTES - 1 - plane]) for plane in range(_planes(digits))]
    first, second, *plain, last = planes
    full = (BEFORE + digits) % BYTES == 0
    packed = [_packed(first), _packed(second), _packed(last, level=0 if full else 1)]
    return b"".join([HEADER.pack(*map(len, packed)), *packed, *(plane.tobytes() for plane in plain)])


def decode(content: bytes, count: int, digits: int) -> Numbers:
    """Return the ``count`` numbers that :func:`encode` wrote; raise ``DamagedError`` if it did not."""
    first, second, *plain, last = _split(content, count, digits)
    table = np.zeros((count, BYTES), np.uint8)
    for plane, values in enumerate((first, second, *plain, last)):
        table[:, BYTES - 1 - plane] = values
    return table.reshape(-1).view("<f8")


def may_hold(size: int, count: int, digits: int) -> bool:
    """Return whether this many bytes can hold this many numbers: each has at least one uncompressed byte."""
    return HEADER.size + (_planes(digits) - 3) * count <= size


def _planes(digits: int) -> int:
    """Return how many bytes of each number are stored."""
    if not LEAST <= digits <= EXACT:
        raise DamagedError(f"numbers must have {LEAST} to {EXACT} binary digits, got {digits}")
    return -(-(BEFORE + digits) // BYTES)


def _split(content: bytes, count: int, digits: int) -> list[NDArray[np.uint8]]:
    """Return the planes in order."""
    plain = _planes(digits) - 3
    view = memoryview(content)
    lengths = HEADER.unpack_from(view) if len(view) >= HEADER.size else (0,)
    if HEADER.size + sum(lengths) + plain * count != len(view):
        raise DamagedError(f"{len(view)} bytes do not hold {count} numbers")
    ends = np.cumsum([HEADER.size, *lengths]).tolist()
    first, second, last = (_unpacked(view[a:b], count) for a, b in pairwise(ends))
    between = np.frombuffer(view[ends[-1] :], np.uint8).reshape(plain, count)
    return [first, second, *between, last]


def _packed(plane: NDArray[np.uint8], level: int = 1) -> bytes:
    packer = zlib.compressobj(level=level, strategy=zlib.Z_HUFFMAN_ONLY)
    return packer.compress(plane.data) + packer.flush()


def _unpacked(content: memoryview, count: int) -> NDArray[np.uint8]:
    """Return a plane of this many bytes; refuse what would decompress to more before allocating it."""
    unpacker = zlib.decompressobj()
    try:
        plane = unpacker.decompress(content, count + 1)
    except zlib.error as error:
        raise DamagedError(f"a packed plane of numbers is damaged ({error})") from error
    if len(plane) != count or not unpacker.eof or unpacker.unused_data:
        raise DamagedError(f"a packed plane does not hold {count} numbers")
    return np.frombuffer(plane, np.uint8)
