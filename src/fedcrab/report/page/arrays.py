"""Arrays as text that a page can carry: little-endian numbers in base64."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = {"f64": "<f8", "f32": "<f4", "i32": "<i4", "u8": "|u1"}
Packed = dict[str, str]


def packed(kind: str, values: NDArray[Any] | Sequence[float]) -> Packed:
    """One array, as the page unpacks it; what is not finite stays as it is."""
    numbers = np.ascontiguousarray(values, KINDS[kind])
    return {"kind": kind, "base64": base64.b64encode(numbers.tobytes()).decode("ascii")}


def joined(kind: str, pieces: Iterable[NDArray[Any] | Sequence[float]]) -> Packed:
    """Arrays of different lengths end to end; their lengths are told elsewhere."""
    parts = [np.asarray(piece, KINDS[kind]) for piece in pieces]
    return packed(kind, np.concatenate(parts) if parts else [])


def unpacked(array: Packed) -> NDArray[Any]:
    """What :func:`packed` packed."""
    return np.frombuffer(base64.b64decode(array["base64"]), KINDS[array["kind"]])
