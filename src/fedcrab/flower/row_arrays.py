"""Replies whose numbers are kept in the matrix of updates instead of in bytes of their own.

A large reply would be in memory twice: as Flower's bytes, for the strategy, and as an update. Here its
float32 numbers are moved to the client's row when it arrives, and its arrays read them from there. When the
strategy has seen all replies, the start model is subtracted in place. An array that is still used then, for
example because the strategy returned it, gets bytes of its own.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedcrab.flower.arrays import numbers
from fedcrab.recording.arrays import ArrayLayout
from fedcrab.types import Vector
from fedcrab.vectors import is_finite

BLOCK = 2**16  # numbers that stay in the cache


class RowArray(Array):
    """An array whose numbers are a part of a row. It has the bytes of the one that it replaces."""

    def __init__(self, like: Array, row: NDArray[np.float32]) -> None:
        self.dtype, self.shape, self.stype = like.dtype, like.shape, like.stype
        self._head, self._data = like.data[: len(like.data) - row.nbytes], b""
        self._row: NDArray[np.float32] | None = row

    @property
    def data(self) -> bytes:
        """The bytes that the client sent."""
        return self._data if self._row is None else b"".join((self._head, self._row.reshape(-1).data))

    @data.setter
    def data(self, data: bytes) -> None:
        self._row, self._data = None, data

    def numpy(self) -> NDArray[Any]:
        """Return a copy of the numbers."""
        return super().numpy() if self._row is None else self._row.copy()

    def move(self, row: NDArray[np.float32]) -> None:
        """Read from another place, to which the numbers were copied."""
        if self._row is not None:
            self._row = row

    def leave(self) -> None:
        """Take bytes of its own, before the row changes."""
        self.data = self.data


class HeldReply:
    """The arrays of one reply that read from its row; the other arrays are there as updates."""

    def __init__(self, model: ArrayLayout, record: ArrayRecord, start: Vector, row: Vector) -> None:
        """Move a reply's numbers to a row; raises ValueError if they do not fit the model."""
        model.difference(record, start, row, partial=True, unchanged=_is_plain)
        self._model, self._held, views = model, dict[str, ref[RowArray]](), model.layout.views(row)
        for name, array in list(record.items()):
            if _is_plain(numbers(array)):
                record[name] = held = RowArray(array, views[name])
                self._held[name] = ref(held)

    def move(self, row: Vector) -> None:
        """Read from another row, to which this one was copied."""
        views = self._model.layout.views(row)
        for name, array in self._held.items():
            if held := array():
                held.move(views[name])

    def is_finite(self, start: Vector, row: Vector) -> bool:
        """Return whether the update will be finite. Two products decide this for most replies."""
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(np.dot(row, row)) and np.isfinite(np.dot(start, start)):
                return True  # no number is above 2⁶⁴, so no difference overflows
        places = self._model.layout.slices()
        parts = [places[name] for name in self._held]
        blocks = [slice(at, min(at + BLOCK, p.stop)) for p in parts for at in range(p.start, p.stop, BLOCK)]
        others = [row[place] for name, place in places.items() if name not in self._held]
        with np.errstate(over="ignore", invalid="ignore"):
            return all(map(is_finite, others)) and all(is_finite(row[b] - start[b]) for b in blocks)

    def subtract(self, start: Vector, row: Vector) -> None:
        """Turn the row into the update. Arrays that somebody still uses get bytes of their own first."""
        places = self._model.layout.slices()
        for name, array in self._held.items():
            if held := array():
                held.leave()
            np.subtract(row[places[name]], start[places[name]], out=row[places[name]])


def _is_plain(array: NDArray[np.generic]) -> bool:
    """Return whether a float32 row has the numbers of this array in the same bytes."""
    return array.dtype == np.dtype("<f4") and array.dtype.isnative and array.flags.c_contiguous
