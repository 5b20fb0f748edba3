"""What a command says while it works."""

import io
import os
import pty
import subprocess
import sys
import threading
import time

import pytest

from fedcrab.progress import EVERY, SILENT, Progress


def told(monkeypatch: pytest.MonkeyPatch, progress: Progress) -> str:
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    with progress:
        progress.stage("Training", total=40, done=3)
        progress.step("loss 1.5")
        now = time.monotonic() + EVERY
        monkeypatch.setattr(time, "monotonic", lambda: now)
        progress.step("loss 1.25")
        progress.step("loss 1")
        progress.line("head after round 4: abc")
    return err.getvalue()


def test_without_a_terminal_a_stage_is_a_line_and_then_one_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = told(monkeypatch, Progress()).splitlines()
    assert lines == ["Training …", "Training: 5 of 40, loss 1.25", "head after round 4: abc"]


@pytest.mark.parametrize("progress", [Progress(quiet=True), SILENT])
def test_a_program_that_reads_json_gets_only_the_lines_that_stay(
    progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(monkeypatch, progress) == "head after round 4: abc\n"


PROGRAM = """
import time
from fedcrab.progress import Progress
with Progress(quiet=True) as progress:
    progress.stage("Loading the simulator")
    time.sleep(0.5)
    progress.stage("Training [all]", total=4)
    progress.step("loss 1.5")
    progress.line("a line that stays")
    time.sleep(0.3)
"""


def test_on_a_terminal_a_line_moves_and_vanishes() -> None:
    ours, theirs = pty.openpty()
    heard = bytearray()

    def listen() -> None:
        try:
            while data := os.read(ours, 4096):
                heard.extend(data)
        except OSError:  # the other side is closed
            pass

    listening = threading.Thread(target=listen)
    listening.start()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, stderr=theirs, stdout=subprocess.PIPE, env=environment, timeout=600)
    os.close(theirs)
    listening.join(600)
    os.close(ours)
    shown = heard.decode()
    assert (done.returncode, done.stdout) == (0, b"")
    assert shown.count("Loading the simulator") > 1  # it moved
    assert "Training [all] 1/4" in shown
    assert "a line that stays" in shown
    assert shown.endswith("\x1b[2K")  # and the line was taken away
