"""The clients' examples in shared memory.

The memory has no name. It is freed when the last process that uses it ends, even if it is killed.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.simulate.data import Dataset, Images, Labels
from fedcrab.simulate.partition import Parts
from fedcrab.types import ClientId

LINE = 64
MOST_HELD = 4  # pieces in use by callers at a time
Spec = list[tuple[str, list[int]]]  # dtype and shape of each array
_numbers = itertools.count()


def _places(spec: Spec) -> tuple[list[int], int]:
    places, end = [], 0
    for dtype, shape in spec:
        places.append(end)
        end += -(-prod(shape) * np.dtype(dtype).itemsize // LINE) * LINE
    return places, max(end, LINE)


def map_arrays(descriptor: int, spec: Spec) -> list[NDArray[np.generic]]:
    """Return the arrays in a piece of shared memory; the mapping lives as long as any of them."""
    return _map(descriptor, spec)[1]


def _map(descriptor: int, spec: Spec) -> tuple[mmap.mmap, list[NDArray[np.generic]]]:
    places, size = _places(spec)
    block = mmap.mmap(descriptor, size)
    return block, [
        np.frombuffer(block, dtype, prod(shape), place).reshape(shape)
        for (dtype, shape), place in zip(spec, places, strict=True)
    ]


def _anonymous(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fedcrab")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class Shared:
    """A few arrays in one piece of shared memory, with a number that identifies it in other processes."""

    def __init__(self, spec: Spec) -> None:
        self.number = next(_numbers)
        self.spec = spec
        self.descriptor = _anonymous(_places(spec)[1])
        weakref.finalize(self, os.close, self.descriptor)
        self.arrays = map_arrays(self.descriptor, spec)


class SharedArrays:
    """The shared memory of a fleet and of those derived from it. A piece lives as long as it is used."""

    def __init__(self) -> None:
        self._pieces: weakref.WeakValueDictionary[int, Shared] = weakref.WeakValueDictionary()
        self._spare: list[Shared] = []
        self._held: set[int] = set()  # numbers of the pieces in use by callers

    def allocate(self, spec: Spec) -> Shared:
        """Return a new piece with arrays of these types and shapes."""
        piece = Shared(spec)
        self._pieces[piece.number] = piece
        return piece

    def lend(self, spec: Spec) -> Shared:
        """Return a piece for one round; one of an earlier round is reused if it fits: it is faster."""
        spare = self._spare.pop() if self._spare else None
        return spare if spare is not None and spare.spec == spec else self.allocate(spec)

    def hand_out(self, piece: Shared) -> list[NDArray[np.generic]]:
        """Return the arrays of a lent piece to the caller, without a copy.

        When nobody uses them any more, the piece can be lent again. After an error a piece is not lent again,
        because a worker may still write to it. A caller that keeps the arrays of many rounds gets copies of
        the later ones, because each mapping needs file descriptors.
        """
        if len(self._held) >= MOST_HELD:
            self._spare[:] = [piece]
            return [np.array(array) for array in piece.arrays]
        block, arrays = _map(piece.descriptor, piece.spec)
        self._held.add(piece.number)
        weakref.finalize(block, self._take_back, piece).atexit = False
        return arrays

    def _take_back(self, piece: Shared) -> None:
        self._held.discard(piece.number)
        self._spare[:] = [piece]

    def pieces(self) -> dict[int, Shared]:
        """Return all pieces that are still in use, by number."""
        return dict(self._pieces)


@dataclass(frozen=True, slots=True)
class ClientExamples:
    """The part of shared memory that has a client's examples."""

    memory: Shared
    begin: int
    count: int

    def examples(self) -> tuple[Images, Labels]:
        """Return read-only views: a change would affect every fleet that shares the memory."""
        rows = slice(self.begin, self.begin + self.count)
        x, y = self.memory.arrays[0][rows].view(np.float32), self.memory.arrays[1][rows].view(np.int64)
        x.flags.writeable = y.flags.writeable = False
        return x, y


def hold_parts(shelf: SharedArrays, dataset: Dataset, parts: Parts) -> dict[ClientId, ClientExamples]:
    """Copy a data set in the order of the clients, so that each client's examples are contiguous."""
    if not parts or any(not len(part) for part in parts):
        raise ConfigError("a fleet needs at least one client, and each client at least one example")
    order = np.concatenate(parts)
    if not 0 <= order.min() <= order.max() < len(dataset.train_y):
        raise ConfigError(f"a partition can use examples 0 to {len(dataset.train_y) - 1}, got {order.max()}")
    memory = shelf.allocate([("f4", [len(order), *dataset.shape]), ("i8", [len(order)])])
    np.take(dataset.train_x, order, axis=0, out=memory.arrays[0], mode="clip")
    np.take(dataset.train_y, order, out=memory.arrays[1], mode="clip")
    ends = np.cumsum([len(part) for part in parts])
    return {
        str(client): ClientExamples(memory, int(end) - len(part), len(part))
        for client, (part, end) in enumerate(zip(parts, ends, strict=True))
    }


def hold_examples(
    shelf: SharedArrays,
    replaced: Mapping[ClientId, tuple[Images, Labels]],
    *,
    shape: tuple[int, ...],
    classes: int,
) -> dict[ClientId, ClientExamples]:
    """Copy the given examples of some clients."""
    total = sum(len(y) for _, y in replaced.values())
    memory = shelf.allocate([("f4", [total, *shape]), ("i8", [total])])
    holdings, begin = {}, 0
    for client, (x, y) in replaced.items():
        _check(client, x, y, shape, classes)
        holdings[client] = ClientExamples(memory, begin, len(y))
        memory.arrays[0][begin : begin + len(y)] = x
        memory.arrays[1][begin : begin + len(y)] = y
        begin += len(y)
    return holdings


def _check(client: ClientId, x: Images, y: Labels, shape: tuple[int, ...], classes: int) -> None:
    if np.shape(x) != (len(y), *shape) or not len(y):
        raise ConfigError(
            f"client {client!r}: needs examples of shape {shape} with one label each, "
            f"got x {np.shape(x)} and y {np.shape(y)}"
        )
    if not 0 <= np.min(y) <= np.max(y) < classes:
        raise ConfigError(
            f"client {client!r}: labels must be 0 to {classes - 1}, found {np.min(y)} to {np.max(y)}"
        )
