"""Between Flower's named arrays and the flat float32 vector that everything else works on."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from io import BytesIO
from math import prod

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib.format import header_data_from_array_1_0, write_array_header_1_0
from numpy.typing import NDArray

from fedcrab.recording.arrays import ArrayLayout

PLAIN = "numpy.ndarray"  # Flower's only serialisation
LONGEST_HEADER = 2**12
HEADER = re.compile(  # of numpy's file format, version 1, as numpy writes it
    rb"\x93NUMPY\x01\x00(?P<length>..)(?P<text>\{'descr': '(?P<dtype>[<>|](?:f[248]|[iu][1248]))', "
    rb"'fortran_order': (?P<fortran>True|False), 'shape': \((?P<shape>[0-9, ]{0,400})\), \} *\n)",
    re.DOTALL,
)


def array_layout(arrays: ArrayRecord, *, buffers: Collection[str] | None = None) -> ArrayLayout:
    """Return the layout of a model in Flower's arrays."""
    return ArrayLayout.of(arrays, buffers=buffers, read=numbers, pack=as_record)


def as_record(arrays: Mapping[str, NDArray[np.generic]]) -> ArrayRecord:
    """Return named numpy arrays as a Flower record."""
    return ArrayRecord({name: _as_array(array) for name, array in arrays.items()})


def _as_array(array: NDArray[np.generic]) -> Array:
    """Return ``Array(array)``, with one copy of the numbers where Flower makes two."""
    if not array.flags.c_contiguous or array.dtype.hasobject:
        return Array(array)
    head = BytesIO()
    write_array_header_1_0(head, header_data_from_array_1_0(array))
    data = b"".join((head.getvalue(), array.reshape(-1).view(np.uint8).data))
    return Array(str(array.dtype), array.shape, PLAIN, data)


def numbers(array: Array) -> NDArray[np.generic]:
    """Return the numbers of an array as a view of its bytes; raises ValueError if its header is wrong.

    Numpy's reader allocates whatever a header claims, and fails in many ways if the header is wrong.
    """
    found = HEADER.match(array.data[:LONGEST_HEADER]) if array.stype == PLAIN else None
    if found is None or int.from_bytes(found["length"], "little") != len(found["text"]):
        raise ValueError("an array cannot be read")
    dtype, fortran = np.dtype(found["dtype"].decode()), found["fortran"] == b"True"
    shape = tuple(int(n) for n in found["shape"].split(b",") if n.strip())
    if dtype.itemsize * prod(shape) != len(array.data) - found.end():
        raise ValueError("an array cannot be read: its length differs from its header")
    return np.frombuffer(array.data, dtype, offset=found.end()).reshape(shape, order="F" if fortran else "C")
