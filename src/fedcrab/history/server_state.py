"""What a server keeps between rounds besides the model, for example the moments of its optimiser.

It is written as a safetensors file, like a model: arrays as tensors, plain values as JSON in the metadata.
One state belongs to the model before a round and one to the model after it. Both are kept as long as their
model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import DamagedError, RecordError, shown
from fedcrab.files import Part
from fedcrab.types import ServerState

METADATA = "__metadata__"
VALUES = "values"
LONGEST_HEAD = 2**23  # bytes: names and shapes of the arrays, and the plain values
LONGEST_VALUES = 2**20  # characters of JSON
MOST_NUMBERS = 2**48
DTYPES: Mapping[str, str] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
_NAMES = {np.dtype(text): name for name, text in DTYPES.items()}


def check_state(state: ServerState) -> None:
    """Raise ``RecordError`` if a state could not be read back, before anything is written."""
    try:
        text = json.dumps(state.values)
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"the server's state has values that JSON cannot hold: {error}") from error
    if len(text) > LONGEST_VALUES:
        raise RecordError(
            f"the server's state has {len(text)} characters of plain values; the limit is {LONGEST_VALUES}"
        )
    for name, array in state.arrays.items():
        if not isinstance(name, str) or name == METADATA or not isinstance(array, np.ndarray):
            raise RecordError(f"the server's state has an array {shown(name)} that cannot be stored")
        if array.dtype.newbyteorder("<") not in _NAMES:
            raise RecordError(f"the server's state has {name!r} of type {array.dtype}; it cannot be stored")
    if len(_head(state)) > LONGEST_HEAD:
        raise RecordError(f"the server's state has too many arrays ({len(state.arrays)})")


def state_parts(state: ServerState) -> Iterator[Part]:
    """Yield the bytes of its file, one piece at a time."""
    yield _head(state)
    for name in sorted(state.arrays):
        flat = np.ascontiguousarray(state.arrays[name]).reshape(-1)
        yield np.ascontiguousarray(flat, flat.dtype.newbyteorder("<")).view(np.uint8).data


def state_hash(state: ServerState) -> str:
    """Return the hash that its file would have."""
    digest = hashlib.sha256()
    for part in state_parts(state):
        digest.update(part)
    return digest.hexdigest()


def _head(state: ServerState) -> bytes:
    table: dict[str, Any] = {METADATA: {VALUES: json.dumps(state.values, sort_keys=True)}}
    start = 0
    for name in sorted(state.arrays):
        array = state.arrays[name]
        kind, stop = _NAMES[array.dtype.newbyteorder("<")], start + array.nbytes
        table[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def parse_state(path: Path, content: bytes) -> ServerState:
    """Return the state in the bytes of a file, which is not trusted."""
    length = 8 + int.from_bytes(content[:8], "little")
    if not 8 < length <= min(LONGEST_HEAD, len(content)):
        raise DamagedError(f"{path}: not a server's state: its header does not have the stated length")
    try:
        table = json.loads(content[8:length])
        values = dict(json.loads(table.pop(METADATA)[VALUES]).items())
        body, arrays, at = memoryview(content)[length:], dict[str, NDArray[Any]](), 0
        for name, row in table.items():
            arrays[name], at = _array(row, body, at)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path}: not a server's state ({error})") from error
    if at != len(body):
        raise DamagedError(f"{path}: not a server's state: {len(body) - at} bytes belong to no array")
    return ServerState(arrays, values)


def _array(row: Mapping[str, Any], body: memoryview, at: int) -> tuple[NDArray[np.generic], int]:
    """Return one array, which starts where the previous one ended, and its end."""
    kind, shape = np.dtype(DTYPES[row["dtype"]]), tuple(row["shape"])
    if not all(type(n) is int and 0 <= n <= MOST_NUMBERS for n in shape) or len(shape) > 32:
        raise ValueError(f"an array of shape {str(shape)[:40]}")
    stop = at + kind.itemsize * int(np.prod(shape, dtype=object))
    if row["data_offsets"] != [at, stop] or stop > len(body):
        raise ValueError("an array is not at its stated position")
    found: NDArray[np.generic] = np.frombuffer(body[at:stop], kind).reshape(shape).copy()
    return found, stop
