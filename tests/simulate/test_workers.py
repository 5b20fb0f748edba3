"""Worker processes: they leave with the fleet, however it ends, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcrab.errors import ConfigError, FedcrabError
from fedcrab.simulate import LocalTraining, SimulatedFleet, iid, initial_model, load_dataset
from fedcrab.simulate.client_data import MOST_HELD
from fedcrab.simulate.machine import cores, default_workers
from fedcrab.simulate.worker import split_clients

pytestmark = pytest.mark.long(15)

SCRIPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
from fedcrab.simulate import LocalTraining, SimulatedFleet, iid, initial_model, load
data = load("synthetic")
fleet = SimulatedFleet(data, iid(data.train_y, clients=4, seed=0), "mlp", seed=0, workers={workers})
model = initial_model(fleet.architecture, seed=0)
fleet.train(model, fleet.clients, round=0, epochs=1)
print(*[w.process.pid for w in fleet._plant.workers._started], flush=True)
fleet.train(model, fleet.clients, round=0, epochs={epochs})
"""


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="looks at /proc, which this system has not"
)


def descriptors():
    return sum(1 for _ in Path("/dev/fd").iterdir())


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def gone(pids, seconds=600):
    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, pids))


def run_script(epochs, workers=1, **environment):
    running = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(epochs=epochs, workers=workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        start_new_session=True,
    )
    return running, [int(pid) for pid in running.stdout.readline().split()]


@needs_proc
def test_workers_leave_at_once_when_the_fleet_is_killed_in_a_round():
    running, pids = run_script(epochs=100_000, workers=2)
    assert len(pids) == 2
    time.sleep(0.3)
    running.kill()
    _, errors = running.communicate(timeout=600)
    assert gone(pids)
    assert errors == ""


@needs_proc
def test_ctrl_c_is_one_traceback_of_the_caller_and_none_of_the_workers():
    running, pids = run_script(epochs=100_000)
    time.sleep(0.3)
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=600)
    assert gone(pids)
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")


@needs_proc
def test_a_script_that_just_ends_leaves_nothing(tmp_path):
    running, pids = run_script(epochs=1, TMPDIR=str(tmp_path))  # its own: other tests keep files in /dev/shm
    _, errors = running.communicate(timeout=600)
    assert (running.returncode, errors) == (0, "")
    assert gone(pids)
    assert not list(tmp_path.iterdir())


def test_without_a_number_there_is_one_per_core_or_what_the_environment_says(monkeypatch):
    monkeypatch.delenv("FEDCRAB_WORKERS")
    assert default_workers() == cores()
    monkeypatch.setenv("FEDCRAB_WORKERS", "3")
    assert default_workers() == 3
    for wrong in ("-1", "two", "1.5"):
        monkeypatch.setenv("FEDCRAB_WORKERS", wrong)
        with pytest.raises(ConfigError, match="FEDCRAB_WORKERS must be a whole number, 0 or more"):
            default_workers()


def test_a_round_after_a_lost_worker_starts_new_ones():
    digits = load_dataset("digits")
    parts = iid(digits.train_y, clients=4, seed=0)
    with SimulatedFleet(digits, parts, seed=0, local=LocalTraining(epochs=1), workers=1) as fleet:
        model = initial_model(fleet.architecture, seed=0)
        before = fleet.train(model, fleet.clients, round=0)
        lost = fleet._plant.workers._started[0].process
        lost.kill()
        lost.wait()
        with pytest.raises(FedcrabError, match="a worker of the simulator ended"):
            fleet.train(model, fleet.clients, round=0)
        assert np.array_equal(fleet.train(model, fleet.clients, round=0).vectors, before.vectors)


def test_memory_is_given_back():
    digits = load_dataset("digits")
    parts = iid(digits.train_y, clients=4, seed=0)
    with SimulatedFleet(digits, parts, seed=0, local=LocalTraining(epochs=0), workers=1) as fleet:
        model = initial_model(fleet.architecture, seed=0)
        fleet.train(model, fleet.clients, round=0)
        before = descriptors()
        kept = [fleet.train(model, ["0"], round=index) for index in range(30)]
        for index in range(30):
            derived = fleet.with_examples({"0": fleet.examples("1")})
            derived.train(model, fleet.clients, round=index)
        del derived
        assert len(kept) == 30
        assert descriptors() <= before + 3 * MOST_HELD
        assert len(fleet._plant.shelf.pieces()) == 2 + MOST_HELD  # the data, the last round's, those held
        del kept
        assert descriptors() <= before
        assert len(fleet._plant.shelf.pieces()) == 2


def test_updates_are_held_once():
    """No copy beside the shared memory; and it is lent again as soon as nobody holds a part of it."""
    digits = load_dataset("digits")
    fleet = SimulatedFleet(digits, iid(digits.train_y, clients=4, seed=0), seed=0, workers=0)
    model = initial_model(fleet.architecture, seed=0)
    row = fleet.train(model, fleet.clients, round=0, epochs=0).vectors[2]
    shelf = fleet._plant.shelf
    (lent,) = (piece for number, piece in shelf.pieces().items() if number in shelf._held)
    lent.arrays[1][2] = 7
    assert (row == 7).all()
    fleet.train(model, fleet.clients, round=1, epochs=0)
    assert (row == 7).all()
    del row
    assert not shelf._held


@given(
    st.lists(st.integers(1, 1000), max_size=60),
    st.sampled_from([1, 5, 64]),
    st.integers(1, 8),
)
def test_every_client_is_dealt_once_and_the_costliest_first(counts, together, workers):
    jobs = split_clients(counts, together=together, workers=workers)
    assert sorted(place for job in jobs for place in job) == list(range(len(counts)))
    dealt = [counts[place] for job in jobs for place in job]
    assert dealt == sorted(counts, reverse=True)
    assert all(jobs)
    if together > 1 and workers > 1:
        assert max(map(len, jobs), default=0) <= together
