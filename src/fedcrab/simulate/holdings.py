"""Where the examples of each client are in shared memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fedcrab.errors import ConfigError
from fedcrab.simulate.data import Dataset, Images, Labels
from fedcrab.simulate.memory import Shared, Spec
from fedcrab.simulate.partition import Parts
from fedcrab.types import ClientId


class Shelf:
    """The shared memory of a fleet and those derived from it, as long as somebody holds on to each piece."""

    def __init__(self) -> None:
        self._pieces: weakref.WeakValueDictionary[int, Shared] = weakref.WeakValueDictionary()
        self._spare: list[Shared] = []

    def allocate(self, spec: Spec) -> Shared:
        """A new piece with arrays of these types and shapes."""
        piece = Shared(spec)
        self._pieces[piece.number] = piece
        return piece

    @contextmanager
    def lend(self, spec: Spec) -> Iterator[Shared]:
        """A piece for one round, the one of the round before where it fits: fresh memory is slow to fill.

        After an error it is not used again, since a worker may still write to it.
        """
        spare = self._spare.pop() if self._spare else None
        piece = spare if spare is not None and spare.spec == spec else self.allocate(spec)
        yield piece
        self._spare[:] = [piece]

    def pieces(self) -> dict[int, Shared]:
        """All that are still held, by number."""
        return dict(self._pieces)


@dataclass(frozen=True, slots=True)
class Holding:
    """The stretch of shared memory that has a client's examples."""

    memory: Shared
    begin: int
    count: int

    def examples(self) -> tuple[Images, Labels]:
        """Read-only views: a change would reach every fleet that shares the memory."""
        rows = slice(self.begin, self.begin + self.count)
        x, y = self.memory.arrays[0][rows].view(np.float32), self.memory.arrays[1][rows].view(np.int64)
        x.flags.writeable = y.flags.writeable = False
        return x, y


def hold_parts(shelf: Shelf, dataset: Dataset, parts: Parts) -> dict[ClientId, Holding]:
    """Copy a data set in the order of the clients, so that each has one stretch."""
    if not parts or any(not len(part) for part in parts):
        raise ConfigError("a fleet needs one client or more, each with one example or more")
    order = np.concatenate(parts)
    if not 0 <= order.min() <= order.max() < len(dataset.train_y):
        raise ConfigError(f"a partition names examples 0 to {len(dataset.train_y) - 1}, got {order.max()}")
    memory = shelf.allocate([("f4", [len(order), *dataset.shape]), ("i8", [len(order)])])
    np.take(dataset.train_x, order, axis=0, out=memory.arrays[0], mode="clip")
    np.take(dataset.train_y, order, out=memory.arrays[1], mode="clip")
    ends = np.cumsum([len(part) for part in parts])
    return {
        str(client): Holding(memory, int(end) - len(part), len(part))
        for client, (part, end) in enumerate(zip(parts, ends, strict=True))
    }


def hold_examples(
    shelf: Shelf, replaced: Mapping[ClientId, tuple[Images, Labels]], *, shape: tuple[int, ...], classes: int
) -> dict[ClientId, Holding]:
    """Copy the examples given for some clients."""
    total = sum(len(y) for _, y in replaced.values())
    memory = shelf.allocate([("f4", [total, *shape]), ("i8", [total])])
    holdings, begin = {}, 0
    for client, (x, y) in replaced.items():
        _check(client, x, y, shape, classes)
        holdings[client] = Holding(memory, begin, len(y))
        memory.arrays[0][begin : begin + len(y)] = x
        memory.arrays[1][begin : begin + len(y)] = y
        begin += len(y)
    return holdings


def _check(client: ClientId, x: Images, y: Labels, shape: tuple[int, ...], classes: int) -> None:
    if np.shape(x) != (len(y), *shape) or not len(y):
        raise ConfigError(
            f"client {client!r}: needs one or more examples of shape {shape} with a label each, "
            f"got x {np.shape(x)} and y {np.shape(y)}"
        )
    if not 0 <= np.min(y) <= np.max(y) < classes:
        raise ConfigError(
            f"client {client!r}: labels must be 0 to {classes - 1}, found {np.min(y)} to {np.max(y)}"
        )
