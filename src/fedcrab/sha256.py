"""SHA-256 of several messages at once.

Each message comes in parts. Where the kernels are faster than hashlib, one part of every message is hashed at
a time, all messages together, so none of them is held in memory as a whole. Long messages should come first.
Two messages by SHA instructions take hardly longer than one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from ctypes import CDLL, c_size_t
from itertools import chain, zip_longest

import numpy as np
from numpy.typing import NDArray

from fedcrab.native import address, library

Message = Iterable[bytes | memoryview]  # its parts, one after the other
NOTHING = b""
HEADER = 2**12  # bytes; a shorter first part is a header


def sha256_together(messages: Sequence[Message], beside: Executor | None = None) -> list[str]:
    """Return the sha256 of each message, in order; ``beside`` may be used for half of them."""
    native = library()
    least = native.sha256_worthwhile() if native else 0
    if native and 0 < least <= len(messages):
        return sha256_by_kernels(native, messages)
    if beside is None:
        return [_sha256(message) for message in messages]
    other = beside.submit(lambda: [_sha256(message) for message in messages[1::2]])
    found = [""] * len(messages)
    try:
        found[::2] = [_sha256(message) for message in messages[::2]]
    finally:
        found[1::2] = other.result()
    return found


def _sha256(message: Message) -> str:
    digest = hashlib.sha256()
    for part in message:
        digest.update(part)
    return digest.hexdigest()


def sha256_by_kernels(native: CDLL, messages: Sequence[Message]) -> list[str]:
    """Return the sha256 of each message, computed by these kernels."""
    count = c_size_t(len(messages))
    streams = np.zeros((len(messages), native.sha256_stream_size()), np.uint8)
    native.sha256_begin(address(streams), count)
    for parts in _in_step(messages):
        arrays = [np.frombuffer(part, np.uint8) if len(part) else streams[0, :0] for part in parts]
        places = np.array([array.ctypes.data for array in arrays], np.uintp)
        lengths = np.array([array.size for array in arrays], np.uint64)
        native.sha256_update(address(streams), address(places), address(lengths), count)
    digests: NDArray[np.uint8] = np.empty((len(messages), 32), np.uint8)
    native.sha256_end(address(streams), count, address(digests))
    return [digest.tobytes().hex() for digest in digests]


def _in_step(messages: Sequence[Message]) -> Iterator[Sequence[bytes | memoryview]]:
    """Yield a part of each message at a time; headers come first, so that long parts meet long parts."""
    rest = [iter(message) for message in messages]
    firsts = [next(parts, NOTHING) for parts in rest]
    yield [first if len(first) < HEADER else NOTHING for first in firsts]
    for place, first in enumerate(firsts):
        if len(first) >= HEADER:
            rest[place] = chain((first,), rest[place])
    yield from zip_longest(*rest, fillvalue=NOTHING)
