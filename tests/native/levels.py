"""The compiled kernels of each level that this machine runs, and none."""

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL
from pathlib import Path

import pytest

from fedcrab import native


def loaded(level: str) -> CDLL | None:
    """The library of a level, if it was built and the processor runs it."""
    path = Path(native.__file__).parent / f"{level}.so"
    library = native._typed(CDLL(str(path))) if path.exists() else None
    return library if library and library.supported() else None


LIBRARIES = {level: library for level in native.LEVELS if (library := loaded(level))}
each_level = pytest.mark.parametrize(
    "level", LIBRARIES or [pytest.param("", marks=pytest.mark.skip("none built"))]
)


@contextmanager
def kernels(level: str) -> Iterator[None]:
    """Use the kernels of this level, or none."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(native, "_found", lambda: (level, LIBRARIES.get(level)))
        yield
