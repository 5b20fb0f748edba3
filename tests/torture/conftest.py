"""The fault shim, compiled once for each worker, and sound histories to spoil."""

from __future__ import annotations

from pathlib import Path

import pytest

from torture import faults, recording
from torture.victim import Victim


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if faults.compiler() is None:
        pytest.skip("the fault shim is C, and there is no C compiler here (cc, gcc or clang)")
    return faults.build(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "history"
    recording.record(path, "selective", count=4)
    return path


@pytest.fixture
def victim(tmp_path: Path, sound: Path) -> Victim:
    return Victim(tmp_path, sound)
