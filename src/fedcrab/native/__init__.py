"""The kernels that are compiled from C when the package is installed.

``library()`` returns them, or None where there are none: no C compiler when the package was installed, or
FEDCRAB_NATIVE=none; FEDCRAB_NATIVE can also name one level. Every caller has a slower way to do the same, and
the tests compare the two. The pointers of numpy arrays are passed as they are, so callers check types, sizes
and contiguity first.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedcrab.errors import ConfigError

if TYPE_CHECKING:  # `fedcrab --version` does not need numpy
    import numpy as np
    from numpy.typing import NDArray

LEVELS = ("avx512", "avx2", "portable")  # the best first
FOLDER = Path(__file__).parent
SIZES = ("sha256_stream_size", "sha256_worthwhile", "gram_scratch_size")  # functions that return a size_t


def load(name: str) -> ctypes.CDLL | None:
    """Return the library of one level, or None if there is none that this processor runs.

    A library of other sources is not loaded: its functions may take other arguments.
    """
    try:
        loaded = ctypes.CDLL(str(FOLDER / f"{name}.so"))
        loaded.sources.restype = ctypes.c_char_p
        current = loaded.sources().decode() == _sources()
    except (OSError, AttributeError):  # not built, for another system, or older than this check
        return None
    if not current:
        warnings.warn(f"{FOLDER / name}.so is older than its sources; install fedcrab again", stacklevel=2)
        return None
    for function in SIZES:
        getattr(loaded, function).restype = ctypes.c_size_t
    return loaded if loaded.supported() else None


def _sources() -> str:
    """Return the hash of the files that the libraries should have been compiled from."""
    files = [*sorted(FOLDER.glob("*.c")), *sorted(FOLDER.glob("*.h"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@cache
def _found() -> tuple[str, ctypes.CDLL | None]:
    wanted = os.environ.get("FEDCRAB_NATIVE", "")
    if wanted not in ("", "none", *LEVELS):
        raise ConfigError(f"FEDCRAB_NATIVE must be none, {', '.join(LEVELS)} or empty, got {wanted!r}")
    for name in LEVELS:
        if wanted in ("", name) and (loaded := load(name)):
            return name, loaded
    return "none", None


def library() -> ctypes.CDLL | None:
    """Return the best library that this processor runs, or None."""
    return _found()[1]


def level() -> str:
    """Return for which processors the library was compiled, one of LEVELS, or "none"."""
    return _found()[0]


def address(array: NDArray[np.generic]) -> ctypes.c_void_p:
    """Return where an array's numbers are."""
    return ctypes.c_void_p(array.ctypes.data)
