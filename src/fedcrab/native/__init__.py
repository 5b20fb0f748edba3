"""The kernels that are compiled from C when the package is installed.

``library()`` returns them, or None where there are none: no C compiler when the package was installed, or
FEDCRAB_NATIVE=none. Every caller has a slower way to do the same, and the tests compare the two.
FEDCRAB_NATIVE can also name one level. The pointers of numpy arrays are passed as they are, so callers check
types, sizes and contiguity first.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError

LEVELS = ("avx512", "avx2", "portable")  # the best first


@cache
def _found() -> tuple[str, ctypes.CDLL | None]:
    wanted = os.environ.get("FEDCRAB_NATIVE", "")
    if wanted not in ("", "none", *LEVELS):
        raise ConfigError(f"FEDCRAB_NATIVE must be none, {', '.join(LEVELS)} or empty, got {wanted!r}")
    for name in LEVELS:
        path = Path(__file__).parent / f"{name}.so"
        if wanted in ("", name) and path.exists():
            try:
                loaded = ctypes.CDLL(str(path))
            except OSError:  # built for another system
                continue
            if loaded.supported():
                return name, _typed(loaded)
    return "none", None


def _typed(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """Say which functions return sizes; the others return nothing, or an int."""
    for name in ("sha256_stream_size", "sha256_worthwhile", "gram_scratch_size"):
        getattr(loaded, name).restype = ctypes.c_size_t
    return loaded


def library() -> ctypes.CDLL | None:
    """Return the best library that this processor runs, or None."""
    return _found()[1]


def level() -> str:
    """Return for which processors the library was compiled, one of LEVELS, or "none"."""
    return _found()[0]


def plain_rows(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the matrix with the numbers of each row side by side; a copy only if they are not."""
    plain = matrix.dtype == np.float32 and matrix.dtype.isnative and matrix.strides[1] == matrix.itemsize
    return matrix if plain else np.ascontiguousarray(matrix, np.float32)


def rows_at(matrix: NDArray[np.generic]) -> tuple[ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]:
    """Return where a matrix is, how many rows it has, and how many numbers are from one to the next."""
    stride = matrix.strides[0] // matrix.itemsize
    return address(matrix), ctypes.c_size_t(len(matrix)), ctypes.c_size_t(stride)


def address(array: NDArray[np.generic]) -> ctypes.c_void_p:
    """Return where an array's numbers are."""
    return ctypes.c_void_p(array.ctypes.data)
