"""`fedcrab train` as a real process: interrupted, killed, resumed."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedcrab import History
from fedcrab.history.ledger_state import untimed_head
from fedcrab.history.verify import verify
from trials.command import fedcrab

pytestmark = pytest.mark.long(20)

TRAIN = ["train", "digits", "--set", "rounds=12"]
# A process that gets a signal when three rounds are recorded. Started in the background of a shell it would
# inherit that Ctrl-C is ignored.
INTERRUPTED = """
import os, signal, sys
from fedcrab.cli import main
from fedcrab.history import History

def record(history, given):
    plainly(history, given)
    if len(history.rounds) == 3:
        os.kill(os.getpid(), {how})

plainly, History.record = History.record, record
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = {command}
main()
"""
DONE = """
import atexit, os, signal, sys
from fedcrab.cli import main
atexit.register(os.kill, os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["fedcrab", "--version"]
main()
"""


def run(*more: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return fedcrab(*TRAIN, "--workers", "0", *more, cwd=cwd)


def interrupted(place: Path, how: signal.Signals) -> tuple[int, str]:
    """The exit code and last words of a training that gets this signal."""
    command = ["fedcrab", *TRAIN, "--workers", "1", "--history", "h"]
    program = INTERRUPTED.format(how=int(how), command=command)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=place, capture_output=True, text=True, timeout=600, check=False
    )
    return done.returncode, done.stderr


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
    assert code == (130 if how is signal.SIGINT else -how)
    if how is signal.SIGINT:
        assert said.strip().splitlines()[-1].startswith("fedcrab: interrupted")
    assert History.verify(tmp_path / "h") == []
    assert len(History.open(tmp_path / "h").rounds) == 3
    other = run("--history", "h", "--resume", "--set", "local.epochs=3", cwd=tmp_path)
    assert (other.returncode, "a different configuration" in other.stderr) == (2, True)
    done = run("--history", "h", "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "12 rounds" in done.stdout
    assert untimed_head(History.open(tmp_path / "h").contents) == straight


def test_ctrl_c_after_the_work_prints_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DONE], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


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
