"""A server process killed at random moments of training and recovery, and started again, loses nothing."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from deployment import QUIET, ROOT
from scenes import grid, recorded

from fedcrab import History, HistoryError
from fedcrab.recover.saved_steps import saved_steps
from trials.forked import forking

pytestmark = pytest.mark.long(10)

VICTIM = Path(__file__).parent / "victim.py"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Its `python` starts the server as a fork of a process that has imported Flower."""
    env = {**QUIET, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")}
    imports = ("fedcrab.flower", "flwr.clientapp", "flwr.serverapp")
    with forking(tmp_path_factory.mktemp("forked"), env, ["python"], imports) as env:
        yield env


@contextmanager
def started(place: Path, env: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """What was started, and the process that does the work."""
    command = ["python", str(VICTIM), str(place)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, env=env, **streams) as victim:
        word, pid = victim.stdout.readline().split()
        assert word == "ready"
        yield victim, int(pid)


def on_disk(place: Path) -> tuple[list[object], list[object]]:
    try:
        rounds = [entry.digests for entry in History.open(place / "h").rounds]
    except HistoryError:
        rounds = []
    steps = place / "out" / "retrain"
    return rounds, saved_steps(steps) if steps.is_dir() else []


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 20))])
def test_every_round_and_step_survives(seed: int, environment: dict[str, str], tmp_path: Path) -> None:
    chance = random.Random(seed)
    for _ in range(2):
        with started(tmp_path, environment) as (_, pid):
            time.sleep(chance.uniform(0, 0.8))
            seen = on_disk(tmp_path)
            with suppress(ProcessLookupError):  # it may be done
                os.kill(pid, signal.SIGKILL)
        rounds, steps = on_disk(tmp_path)
        assert (rounds[: len(seen[0])], steps[: len(seen[1])]) == seen
    with started(tmp_path, environment) as (victim, _):
        assert victim.wait(600) == 0
    whole = recorded(tmp_path / "whole", grid())
    rounds, steps = on_disk(tmp_path)
    assert rounds == [entry.digests for entry in whole.rounds]
    assert [step["round"] for step in steps] == [0, 1, 2, 3]
    assert all(step["asked"] == [f"site-{i}" for i in range(8) if i != 2] for step in steps)
    assert History.verify(tmp_path / "h") == []
