"""A recovery that was stopped or killed goes on where it was, with the same bits."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedcrab import ConfigError, DamagedError, Everything, HistoryError, Plan, plan
from fedcrab.recover import SavedSteps, fedrecover, resumable
from fedcrab.recover.methods import METHODS as METHOD_ROWS
from fedcrab.recover.run import MethodRun
from recover.killed import ILL, METHODS, TASK
from recover.scenes import Answering, bits, record

HERE = Path(__file__).parent
names = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    start = np.zeros(TASK.size, np.float32)
    path = tmp_path_factory.mktemp("trained") / "h"
    return plan(record(path, Answering(TASK.answer), list("abcdef"), 12, Everything(), model=start), ILL)


def begin(
    decided: Plan, out: Path, name: str = "fedrecover", fleet: Answering | None = None, **request: object
):
    fleet = fleet or Answering(TASK.answer)
    return resumable(out, METHODS[name], decided, fleet, request={"method": name, **request})


def whole(decided: Plan, name: str) -> list:
    return list(METHODS[name](decided, Answering(TASK.answer)))


@names
def test_stopped_after_every_step(name: str, decided: Plan, tmp_path: Path) -> None:
    steps, fleet = [], Answering(TASK.answer)
    for _ in range(20):
        running = begin(decided, tmp_path / "out", name, fleet)
        steps += [step for step in [next(running, None)] if step]
        running.close()
    expected = whole(decided, name)
    assert bits(steps) == bits(expected)
    assert len(fleet.asked) == sum(bool(s.asked) for s in expected)  # nothing is computed twice
    left = sorted(p.name for p in (tmp_path / "out" / "snapshots").iterdir())
    vectors = [
        expected[-1].model,
        *(v for ps in expected[-1].pairs.values() for p in ps for v in (p.moved, p.changed)),
    ]
    assert len(left) == len({v.tobytes() for v in vectors})


@names
def test_killed_at_random_moments(name: str, decided: Plan, tmp_path: Path) -> None:
    kill_and_resume(name, decided, tmp_path / "out", random.Random(name))


@pytest.mark.slow
@names
def test_killed_at_random_moments_many_times(name: str, decided: Plan, tmp_path: Path) -> None:
    for trial in range(25):
        kill_and_resume(name, decided, tmp_path / str(trial), random.Random(f"{name} {trial}"))


def kill_and_resume(name: str, decided: Plan, out: Path, draw: random.Random) -> None:
    expected = {s.round: hashlib.sha256(s.model).hexdigest() for s in whole(decided, name)}
    said: dict[int, str] = {}
    for most in (draw.randint(1, 3), draw.randint(1, 4), None):
        said |= run(decided, out, name, most, draw)
        assert said.items() <= expected.items()
    # a step that was saved but not said when its process was killed is not said again
    progress = SavedSteps(out, decided.history.charter.layout, asked(decided, name))
    assert progress.tables() == [s.to_table() for s in whole(decided, name)]
    assert hashlib.sha256(progress.last().model).hexdigest() == expected[max(expected)]
    progress.release()


def run(decided: Plan, out: Path, name: str, most: int | None, draw: random.Random) -> dict[int, str]:
    """What a process says of its steps; killed a moment after the last that is waited for."""
    command = [sys.executable, str(HERE / "killed.py"), str(decided.history.path), str(out), name]
    path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    said = {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        for line in process.stdout:
            said[int(line.split()[0])] = line.split()[1]
            if len(said) == most:
                time.sleep(0.04 * draw.random())
                process.send_signal(signal.SIGKILL)
                break
        else:
            assert process.wait() == 0
    return said


def asked(decided: Plan, name: str) -> dict[str, object]:
    return {
        "history": decided.history.contents.head,
        "malicious": list(decided.malicious),
        "model": decided.model,
        "method": name,
    }


def test_another_request_is_refused(decided: Plan, tmp_path: Path) -> None:
    next(begin(decided, tmp_path / "out", seed=1))
    with pytest.raises(ConfigError, match="different seed"):
        next(begin(decided, tmp_path / "out", seed=2))
    with pytest.raises(ConfigError, match="different malicious"):
        next(begin(plan(decided.history, {"b"}), tmp_path / "out", seed=1))


def test_a_recovery_by_another_version_of_its_method_is_refused(decided: Plan, tmp_path: Path) -> None:
    """The same settings would give another model; folders that say no version are of the first."""

    def run() -> MethodRun:
        run = MethodRun("replay", decided, Answering(TASK.answer), aggregate=None, saved=tmp_path / "out")
        run.keep({})
        return run

    for _ in run():
        break
    request = tmp_path / "out" / "request.json"
    told = json.loads(request.read_text())
    assert told.pop("version") == METHOD_ROWS["replay"].version > 1
    request.write_text(json.dumps(told))
    with pytest.raises(ConfigError, match="another version of replay"):
        next(iter(run()))


def test_two_processes_do_not_recover_into_one_place(decided: Plan, tmp_path: Path) -> None:
    first = begin(decided, tmp_path / "out")
    next(first)
    with pytest.raises(HistoryError, match="another process"):
        next(begin(decided, tmp_path / "out"))
    first.close()
    assert len(list(begin(decided, tmp_path / "out"))) == 11


def test_nothing_is_left_to_do_after_the_last_step(decided: Plan, tmp_path: Path) -> None:
    assert len(list(begin(decided, tmp_path / "out"))) == 12
    assert list(begin(decided, tmp_path / "out")) == []


def test_a_changed_vector_is_found(decided: Plan, tmp_path: Path) -> None:
    running = begin(decided, tmp_path / "out")
    for _ in range(5):
        next(running)
    running.close()
    for path in (tmp_path / "out" / "snapshots").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(DamagedError, match="sha256 differs"):
        next(begin(decided, tmp_path / "out"))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"step": 3, "model": "x", "pairs": {}}'])
def test_a_step_that_cannot_be_read(content: bytes, decided: Plan, tmp_path: Path) -> None:
    next(begin(decided, tmp_path / "out"))
    (tmp_path / "out" / "steps" / "000000.json").write_bytes(content)
    with pytest.raises(DamagedError, match="out"):
        next(begin(decided, tmp_path / "out"))


def test_what_a_step_says_survives_the_disk(decided: Plan, tmp_path: Path) -> None:
    """Drops, caps and fixes included."""
    broken = Answering(lambda model, c, t, epochs: None if c == "a" else TASK.answer(model, c, t, epochs))
    steps = list(begin(decided, tmp_path / "out", fleet=broken))
    assert any(s.dropped for s in steps)
    assert any(s.fixed for s in steps)
    progress = SavedSteps(tmp_path / "out", decided.history.charter.layout, asked(decided, "fedrecover"))
    assert bits([progress.last()]) == bits(steps[-1:])
    progress.release()
    assert bits(steps) == bits(list(fedrecover(decided, broken, warm_up=4, correct_every=3, tune=1)))
