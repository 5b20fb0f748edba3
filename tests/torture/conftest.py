"""The fault shim, compiled once for each worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from torture import faults


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if faults.compiler() is None:
        pytest.skip("the fault shim is C, and there is no C compiler here (cc, gcc or clang)")
    return faults.build(tmp_path_factory.mktemp("shim"))
