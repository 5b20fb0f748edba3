"""Converts between an engine's named arrays and the flat float32 vector used everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.state_dicts import STATISTICS, cast_array
from fedcrab.types import Field, Layout, Vector

Read = Callable[[Any], NDArray[np.generic]]  # returns the numbers of an engine's array, or raises ValueError
Pack = Callable[[dict[str, NDArray[np.generic]]], Any]  # converts named numpy arrays to the engine's type


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """The arrays of a model on the engine's side: names, order and types."""

    layout: Layout
    dtypes: Mapping[str, str]
    read: Read = np.asarray
    pack: Pack = dict

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, Any],
        *,
        buffers: Collection[str] | None = None,
        read: Read = np.asarray,
        pack: Pack = dict,
    ) -> ArrayLayout:
        """The shape of these arrays; each has a dtype and a shape.

        ``buffers`` names those that are not trained; unless given, whole numbers and BatchNorm's statistics.
        """
        if not arrays:
            raise ConfigError("the initial arrays are empty; there is nothing to record")
        if unknown := set(buffers or ()) - set(arrays):
            raise ConfigError(
                f"buffer {sorted(unknown)[0]!r} is not an array of the model; there are {', '.join(arrays)}"
            )
        fields = tuple(_field(name, array, buffers) for name, array in arrays.items())
        return cls(Layout(fields), {name: str(array.dtype) for name, array in arrays.items()}, read, pack)

    def flatten(
        self, arrays: Mapping[str, Any], out: Vector | None = None, *, rest: Vector | None = None
    ) -> Vector:
        """Return the arrays as one vector; raises ValueError if they do not match this model.

        Arrays that are missing are taken from ``rest``, if given.
        """
        vector = np.empty(self.layout.size, np.float32) if out is None else out
        if rest is not None:
            vector[...] = rest
        views = self.layout.views(vector)
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large is infinite, rejected later
            for name, array in self._matching(arrays, partial=rest is not None).items():
                views[name][...] = array
        return vector

    def difference(
        self,
        arrays: Mapping[str, Any],
        start: Vector,
        out: Vector,
        *,
        partial: bool = False,
        unchanged: Callable[[NDArray[np.generic]], bool] = lambda _: False,
    ) -> Vector:
        """Return the arrays minus ``start``, in one pass over arrays that are already float32.

        With ``partial``, arrays may be missing; these did not change. Nothing is subtracted from the arrays
        for which ``unchanged`` is true.
        """
        views, starts = self.layout.views(out), self.layout.views(start)
        with np.errstate(over="ignore", invalid="ignore"):
            found = self._matching(arrays, partial=partial)
            if len(found) < len(views):
                out[...] = 0
            for name, array in found.items():
                if unchanged(array):
                    views[name][...] = array
                    continue
                rounded = array.astype(np.float32, copy=False)
                np.subtract(rounded, starts[name], out=views[name])
        return out

    def _matching(self, arrays: Mapping[str, Any], *, partial: bool) -> dict[str, NDArray[np.generic]]:
        """Return the numbers of each array; raises ValueError if names or shapes do not match."""
        names = set(arrays)
        if names != set(self.dtypes) and not (partial and names and names < set(self.dtypes)):
            raise ValueError(f"the arrays are {listed(arrays)} instead of {listed(self.dtypes)}")
        found = {f.name: self.read(arrays[f.name]) for f in self.layout.fields if f.name in names}
        for f in self.layout.fields:
            if f.name in found and (shape := found[f.name].shape) != f.shape:
                raise ValueError(f"array {f.name!r} has shape {str(shape)[:40]} instead of {f.shape}")
        return found

    def round_off(self, vector: Vector) -> None:
        """Round integers to whole numbers and half precision to half, in place."""
        for field, view in zip(self.layout.fields, self.layout.views(vector).values(), strict=True):
            if field.integer:
                np.rint(view, out=view)
            elif (kind := np.dtype(self.dtypes[field.name])).itemsize < view.itemsize:
                view[...] = view.astype(kind)

    def absent(self, arrays: Collection[str]) -> tuple[int, ...]:
        """Return the positions in the layout of arrays that are not among these names."""
        names = frozenset(arrays)
        return tuple(place for place, f in enumerate(self.layout.fields) if f.name not in names)

    def arrays(self, vector: Vector, absent: Collection[int] = ()) -> Any:
        """Return the vector as the engine's arrays, with the types that the training began with.

        Arrays at the positions ``absent`` are left out.
        """
        views, left_out = self.layout.views(vector), frozenset(absent)
        named = [item for place, item in enumerate(views.items()) if place not in left_out]
        return self.pack({name: cast_array(view, self.dtypes[name]) for name, view in named})


def _field(name: str, array: Any, buffers: Collection[str] | None) -> Field:
    kind = np.dtype(array.dtype).kind
    if kind not in "fiu":
        raise ConfigError(f"array {name!r} is {array.dtype}; a model has floats and integers only")
    whole = kind != "f"
    guessed = whole or name.rpartition(".")[2] in STATISTICS
    buffer = guessed if buffers is None else name in buffers
    if whole and not buffer:
        raise ConfigError(f"array {name!r} is {array.dtype}; integers cannot be trained; name it as a buffer")
    return Field(name, tuple(array.shape), trained=not buffer, integer=whole)


def listed(names: Collection[str]) -> str:
    return ", ".join(sorted(map(str, names)))[:200] or "none"


class UpdateBuffers:
    """Memory for the updates of one round, reused in turn while the previous round is written.

    Fresh memory of this size costs more CPU time than everything else done with the updates. With ``wait``,
    which returns when the previous round is written, one block of memory is enough.
    """

    def __init__(self, wait: Callable[[], None] | None = None) -> None:
        self._used, self._next = (np.empty((0, 0), np.float32) for _ in range(2))
        self._wait = wait

    def take(self, rows: int, columns: int) -> NDArray[np.float32]:
        """Return memory that is no longer in use."""
        if self._wait is None:
            self._used, self._next = self._next, self._used
        else:
            self._wait()
        if len(self._used) < rows or self._used.shape[1] != columns:
            self._used = np.empty((rows, columns), np.float32)
        return self._used[:rows]
