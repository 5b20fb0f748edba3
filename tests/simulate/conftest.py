"""Workers that start at once, for the tests that do not look at how they start or end."""

import os
import sys
from collections.abc import Iterator

import pytest

from trials.forked import forking


@pytest.fixture(scope="session")
def forked_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Python whose processes are forks of one that has imported what a worker imports."""
    place = tmp_path_factory.mktemp("workers")
    with forking(place, {**os.environ}, ["python"], ["fedcrab.simulate.worker"]):
        yield str(place / "bin" / "python")


@pytest.fixture(params=["forked", pytest.param("started", marks=pytest.mark.slow)])
def forked_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of a worker, its arguments and its socket are the same: only its imports are shared."""
    if request.param == "forked":
        monkeypatch.setattr(sys, "executable", request.getfixturevalue("forked_python"))
