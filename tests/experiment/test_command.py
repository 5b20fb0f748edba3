"""`fedcrab train` as a real process: interrupted, killed, resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedcrab import History
from fedcrab.history.ledger_state import untimed_head
from fedcrab.history.verify import verify
from trials.command import fedcrab

pytestmark = pytest.mark.long(20)

TRAIN = ["train", "digits", "--set", "rounds=12"]


def run(*more: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return fedcrab(*TRAIN, "--workers", "0", *more, cwd=cwd)


def interrupted(place: Path, how: signal.Signals) -> tuple[int, str]:
    """The exit code and last words of a training that gets this signal once some rounds are recorded."""
    command = [sys.executable, "-m", "fedcrab", *TRAIN, "--workers", "1", "--history", "h"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=place, **streams)
    deadline = time.monotonic() + 60
    while rounds_in(place / "h") < 3 and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)  # polling for a state of the disk; nothing signals it
    os.kill(process.pid, how)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def rounds_in(path: Path) -> int:
    return len(History.open(path).rounds) if path.exists() else 0


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("straight")
    done = run("--history", "h", "--json", "--head-every", "5", cwd=place)
    assert done.returncode == 0, done.stderr
    noted = re.findall(r"head after round (\d+): ([0-9a-f]{64})", done.stderr)
    assert [(t, verify(place / "h", head=head).anchored) for t, head in noted] == [("4", 5), ("9", 10)]
    result = json.loads(done.stdout)
    assert result["accuracy"] > 0.5
    assert len(result["attackers"]) == 5
    return untimed_head(History.open(place / "h").contents)  # the head itself covers the times


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_resumed_after_an_interruption_it_gives_the_same_bits(
    how: signal.Signals, straight: str, tmp_path: Path
) -> None:
    code, said = interrupted(tmp_path, how)
    assert "Traceback" not in said
    if how is signal.SIGINT:
        assert code == 130
        assert said.strip().splitlines()[-1].startswith("fedcrab: interrupted")
    assert History.verify(tmp_path / "h") == []
    other = run("--history", "h", "--resume", "--set", "local.epochs=3", cwd=tmp_path)
    assert (other.returncode, "another configuration" in other.stderr) == (2, True)
    done = run("--history", "h", "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "12 rounds" in done.stdout
    assert untimed_head(History.open(tmp_path / "h").contents) == straight


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    for more in (
        ["--history", "h", "--set", "data.name=faces"],
        ["--history", "h", "--resume"],
        ["--history", "."],
        ["--history", "h", "--workers", "-1"],
    ):
        done = run(*more, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    (tmp_path / "file").write_text("x")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
