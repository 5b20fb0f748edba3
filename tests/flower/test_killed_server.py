"""A server process killed at random moments of training and recovery, and started again, loses nothing."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deployment import QUIET, ROOT
from scenes import grid, recorded

from fedcrab import History, HistoryError
from fedcrab.recover.saved_steps import saved_steps

pytestmark = pytest.mark.long(10)

VICTIM = Path(__file__).parent / "victim.py"


def started(place: Path) -> subprocess.Popen[str]:
    env = {**QUIET, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")}
    victim = subprocess.Popen(
        [sys.executable, str(VICTIM), str(place)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    )
    assert victim.stdout.readline() == "ready\n"
    return victim


def on_disk(place: Path) -> tuple[list[object], list[object]]:
    try:
        rounds = [entry.digests for entry in History.open(place / "h").rounds]
    except HistoryError:
        rounds = []
    steps = place / "out" / "retrain"
    return rounds, saved_steps(steps) if steps.is_dir() else []


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 20))])
def test_every_round_and_step_survives(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    for _ in range(2):
        with started(tmp_path) as victim:
            time.sleep(chance.uniform(0, 1.2))
            seen = on_disk(tmp_path)
            victim.kill()
        rounds, steps = on_disk(tmp_path)
        assert (rounds[: len(seen[0])], steps[: len(seen[1])]) == seen
    with started(tmp_path) as victim:
        assert victim.wait(600) == 0
    whole = recorded(tmp_path / "whole", grid())
    rounds, steps = on_disk(tmp_path)
    assert rounds == [entry.digests for entry in whole.rounds]
    assert [step["round"] for step in steps] == [0, 1, 2, 3]
    assert all(step["asked"] == [f"site-{i}" for i in range(8) if i != 2] for step in steps)
    assert History.verify(tmp_path / "h") == []
