"""The compiled kernels of each level that this machine runs, and none."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedcrab import native

LIBRARIES = {level: library for level in native.LEVELS if (library := native.load(level))}
each_level = pytest.mark.parametrize(
    "level", LIBRARIES or [pytest.param("", marks=pytest.mark.skip("none built"))]
)


@contextmanager
def kernels(level: str) -> Iterator[None]:
    """Use the kernels of this level, or none."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(native, "_found", lambda: (level, LIBRARIES.get(level)))
        yield
