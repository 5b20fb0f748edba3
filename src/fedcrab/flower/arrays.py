"""Between Flower's named arrays and the flat float32 vector that everything else works on.

What a history recorded on Flower says about itself, so that a recovery asks as the training asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from numpy.typing import NDArray

from fedcrab.errors import ConfigError, HistoryError
from fedcrab.history import History
from fedcrab.types import Field, Layout, Vector

STATISTICS = ("running_mean", "running_var")  # what torch calls BatchNorm's buffers
PLAIN = "numpy.ndarray"  # the one serialisation that Flower has
LONGEST_HEADER = 2**12
HEADER = re.compile(  # of numpy's file format, version 1, as numpy writes it
    rb"\x93NUMPY\x01\x00(?P<length>..)(?P<text>\{'descr': '(?P<dtype>[<>|](?:f[248]|[iu][1248]))', "
    rb"'fortran_order': (?P<fortran>True|False), 'shape': \((?P<shape>[0-9, ]{0,400})\), \} *\n)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """What a model looks like on Flower's side: its arrays by name, in their order, with their types."""

    layout: Layout
    dtypes: Mapping[str, str]

    @classmethod
    def of(cls, arrays: ArrayRecord, *, buffers: Collection[str] | None = None) -> ArrayLayout:
        """The shape of these arrays.

        ``buffers`` names those that are not trained; unless given, whole numbers and BatchNorm's statistics.
        """
        if not arrays:
            raise ConfigError("the initial arrays are empty; there is nothing to record")
        if unknown := set(buffers or ()) - set(arrays):
            raise ConfigError(
                f"no array {sorted(unknown)[0]!r} to be a buffer; there are {', '.join(arrays)}"
            )
        fields = tuple(_field(name, array, buffers) for name, array in arrays.items())
        return cls(Layout(fields), {name: array.dtype for name, array in arrays.items()})

    def flatten(self, arrays: ArrayRecord, out: Vector | None = None) -> Vector:
        """The arrays as one vector; ValueError where they are not those of this model."""
        vector = np.empty(self.layout.size, np.float32) if out is None else out
        views = self.layout.views(vector)
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is infinite, and is told so
            for name, array in self._matching(arrays).items():
                views[name][...] = array
        return vector

    def difference(self, arrays: ArrayRecord, start: Vector, out: Vector) -> Vector:
        """The arrays minus ``start``, in one pass over each that is float32 already."""
        views, starts = self.layout.views(out), self.layout.views(start)
        with np.errstate(over="ignore", invalid="ignore"):
            for name, array in self._matching(arrays).items():
                rounded = array.astype(np.float32, copy=False)
                np.subtract(rounded, starts[name], out=views[name])
        return out

    def _matching(self, arrays: ArrayRecord) -> dict[str, NDArray[np.generic]]:
        """The numbers of each array, of the shape that the model has."""
        if set(arrays) != set(self.dtypes):
            raise ValueError(f"the arrays are {_listed(arrays)} in place of {_listed(self.dtypes)}")
        found = {f.name: numbers(arrays[f.name]) for f in self.layout.fields}
        for f in self.layout.fields:
            if (shape := found[f.name].shape) != f.shape:
                raise ValueError(f"array {f.name!r} has shape {str(shape)[:40]} in place of {f.shape}")
        return found

    def arrays(self, vector: Vector) -> ArrayRecord:
        """The vector as arrays of the types that the training began with."""
        views = self.layout.views(vector)
        return ArrayRecord({name: Array(_cast(view, self.dtypes[name])) for name, view in views.items()})


def numbers(array: Array) -> NDArray[np.generic]:
    """The numbers of an array as a view of its bytes; ValueError where they are not what they say they are.

    Numpy's own reader would allocate what a header claims, and fails in many ways on one that lies.
    """
    found = HEADER.match(array.data[:LONGEST_HEADER]) if array.stype == PLAIN else None
    if found is None or int.from_bytes(found["length"], "little") != len(found["text"]):
        raise ValueError("an array that cannot be read")
    dtype, fortran = np.dtype(found["dtype"].decode()), found["fortran"] == b"True"
    shape = tuple(int(n) for n in found["shape"].split(b",") if n.strip())
    if dtype.itemsize * prod(shape) != len(array.data) - found.end():
        raise ValueError("an array that cannot be read: it is not as long as it says")
    return np.frombuffer(array.data, dtype, offset=found.end()).reshape(shape, order="F" if fortran else "C")


def _cast(view: NDArray[np.float32], dtype: str) -> NDArray[np.generic]:
    kind = np.dtype(dtype)
    return np.array(view if kind.kind == "f" else np.rint(view), kind, order="C")


def _field(name: str, array: Array, buffers: Collection[str] | None) -> Field:
    kind = np.dtype(array.dtype).kind
    if kind not in "fiu":
        raise ConfigError(f"array {name!r} is {array.dtype}; a model is made of floating and whole numbers")
    whole = kind != "f"
    guessed = whole or name.rpartition(".")[2] in STATISTICS
    buffer = guessed if buffers is None else name in buffers
    if whole and not buffer:
        raise ConfigError(
            f"array {name!r} is {array.dtype}; whole numbers cannot be trained, name it a buffer"
        )
    return Field(name, tuple(array.shape), trained=not buffer, integer=whole)


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(map(str, names)))[:200] or "none"


KEY = "flower"
ROUND = "server-round"


@dataclass(frozen=True, slots=True)
class RunMetadata:
    """Kept in the charter, as JSON."""

    identity: str  # how clients are named: by registration, or by partition
    strategy: str
    dtypes: Mapping[str, str]
    arrays_key: str = "arrays"
    config_key: str = "config"
    examples_key: str = "num-examples"
    config: Mapping[str, Any] = field(default_factory=dict)  # what was sent along with each model

    def to_json(self) -> str:
        """As text."""
        return json.dumps({KEY: asdict(self)})

    @classmethod
    def of(cls, history: History) -> RunMetadata:
        """Those of a history, which must have been recorded on Flower."""
        names = {f.name for f in history.charter.layout.fields}
        try:
            notes = cls(**json.loads(history.charter.notes)[KEY])
            sound = set(notes.dtypes) == names and isinstance(notes.config, dict)
        except (ValueError, TypeError, KeyError):
            sound = False
        if not sound:
            raise HistoryError(
                f"{history.path}: was not recorded on Flower; recover it with `fedcrab recover`"
            )
        return notes

    def model(self, history: History) -> ArrayLayout:
        """What the history's model looks like on Flower's side."""
        return ArrayLayout(history.charter.layout, self.dtypes)


def plain(config: ConfigRecord | None) -> dict[str, Any]:
    """The settings of a config record that can be kept; the round is set anew each time."""
    kept = {} if config is None else dict(config)
    return {key: value for key, value in kept.items() if key != ROUND and not _has_bytes(value)}


def _has_bytes(value: object) -> bool:
    return isinstance(value, bytes) or (isinstance(value, list) and any(isinstance(v, bytes) for v in value))
