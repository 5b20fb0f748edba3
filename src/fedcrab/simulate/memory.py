"""Memory that processes share, without a name: it is gone when the last of them is, however they end."""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
import weakref
from math import prod

import numpy as np
from numpy.typing import NDArray

LINE = 64
Spec = list[tuple[str, list[int]]]  # dtype and shape of each array
_numbers = itertools.count()


def _places(spec: Spec) -> tuple[list[int], int]:
    places, end = [], 0
    for dtype, shape in spec:
        places.append(end)
        end += -(-prod(shape) * np.dtype(dtype).itemsize // LINE) * LINE
    return places, max(end, LINE)


def map_arrays(descriptor: int, spec: Spec) -> list[NDArray[np.generic]]:
    """The arrays in a piece of shared memory; the mapping lives as long as any of them."""
    places, size = _places(spec)
    block = mmap.mmap(descriptor, size)
    return [
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
    """A few arrays in one piece of shared memory, with a number by which processes speak of it."""

    def __init__(self, spec: Spec) -> None:
        self.number = next(_numbers)
        self.spec = spec
        self.descriptor = _anonymous(_places(spec)[1])
        weakref.finalize(self, os.close, self.descriptor)
        self.arrays = map_arrays(self.descriptor, spec)
