"""Between Flower's named arrays and the flat float32 vector that everything else works on."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from math import prod

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

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
