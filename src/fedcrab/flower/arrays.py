"""Between Flower's named arrays and the flat float32 vector that everything else works on.

What a history recorded on Flower says about itself, so that a recovery asks as the training asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedcrab.errors import ConfigError, HistoryError
from fedcrab.history import History
from fedcrab.recording.arrays import ArrayLayout

PLAIN = "numpy.ndarray"  # the one serialisation that Flower has
LONGEST_HEADER = 2**12
HEADER = re.compile(  # of numpy's file format, version 1, as numpy writes it
    rb"\x93NUMPY\x01\x00(?P<length>..)(?P<text>\{'descr': '(?P<dtype>[<>|](?:f[248]|[iu][1248]))', "
    rb"'fortran_order': (?P<fortran>True|False), 'shape': \((?P<shape>[0-9, ]{0,400})\), \} *\n)",
    re.DOTALL,
)


def array_layout(arrays: ArrayRecord, *, buffers: Collection[str] | None = None) -> ArrayLayout:
    """What a model looks like on Flower's side."""
    return ArrayLayout.of(arrays, buffers=buffers, read=numbers, pack=as_record)


def as_record(arrays: Mapping[str, NDArray[np.generic]]) -> ArrayRecord:
    """Numpy arrays by name as Flower has them."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


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
    config: Mapping[str, Any] = field(default_factory=dict)  # what the first round sent along with the model
    mean: bool | None = None  # whether the strategy takes FedAvg's weighted mean; older histories do not say
    beside: tuple[str, ...] = ()  # array records that messages had beside the model; they are not kept

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

    def check_identity(self, scheme: str, path: Path) -> None:
        """Clients are named now as they were when the history began."""
        if scheme != self.identity:
            raise ConfigError(f"{path}: its clients are named by {self.identity}, those here by {scheme}")

    def model(self, history: History) -> ArrayLayout:
        """What the history's model looks like on Flower's side."""
        return ArrayLayout(history.charter.layout, self.dtypes, numbers, as_record)
