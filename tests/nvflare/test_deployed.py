"""Provisioned sites and a server in processes of their own: names from certificates, kills, recovery."""

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flare_deployment import APP, Deployment, deployed, recovery, training, until

from fedcrab import History
from fedcrab.recover.folder import RecoveryFolder

sys.path.append(str(APP))
import task


def honest_model(rounds: int) -> np.ndarray:
    """FedAvg on sites 1 and 3 of the example, in plain numpy."""
    w, parts = task.initial(), {site: task.load(site, 3) for site in (0, 2)}
    for t in range(rounds):
        local = [task.train(w, *parts[s], epochs=2, rate=0.5, seed=1000 * t + s) for s in parts]
        sizes = [len(parts[s][1]) for s in parts]
        w = np.average(np.array(local, np.float64), axis=0, weights=sizes).astype(np.float32)
    return w


def recorded(history: Path) -> int:
    return len(History.open(history).rounds) if (history / "ledger.sqlite").exists() else 0


def steps(out: Path) -> int:
    return len(list((out / "retrain" / "steps").glob("*.json")))


def killed_and_back(trial: Deployment, job: str, party: str) -> None:
    """A party dies with all its processes and is started again; the operator gives the job up."""
    trial.kill(party)
    trial.start(party)
    trial.abort(job)


def train(trial: Deployment, folder: Path, history: Path) -> None:
    """Submit a training, and wait until it has ended."""
    trial.submit(folder)
    until(lambda: History.open(history).closed, trial)


def recover(trial: Deployment, folder: Path, out: Path) -> None:
    """Submit a recovery, and wait until it has ended."""
    trial.submit(folder)
    until(lambda: (out / "retrain" / "summary.json").exists(), trial)


@pytest.mark.slow
def test_a_server_killed_in_training_and_the_recovery_on_the_same_sites(tmp_path: Path) -> None:
    history, out = tmp_path / "h", tmp_path / "out"
    with deployed(tmp_path, 3) as trial:
        folder = training(tmp_path, "train", history, rounds=8, attackers="site-2")
        job = trial.submit(folder)
        until(lambda: recorded(history) >= 2, trial)
        killed_and_back(trial, job, "localhost")
        assert History.verify(history) == []
        before = [r.after for r in History.open(history).rounds]
        assert 2 <= len(before) < 8
        train(trial, folder, history)
        found = History.open(history)
        assert found.closed
        assert [r.after for r in found.rounds][: len(before)] == before
        assert [r.clients for r in found.rounds] == [("site-1", "site-2", "site-3")] * 8
        given = {"history": str(history), "malicious": "site-2", "recovered": str(out), "method": "retrain"}
        recover(trial, recovery(folder, "recover", given), out)
    model = RecoveryFolder.open(out / "retrain").model(found).reshape(65, 10)
    assert np.abs(model - honest_model(8)).max() < 1e-5
    x, y = task.held_out()
    poisoned = found.final_model().reshape(65, 10)
    fooled = [
        (task.probabilities(w, task.marked(x[y != 0])).argmax(1) == 0).mean() for w in (poisoned, model)
    ]
    assert fooled[0] > 0.5 > 0.2 > fooled[1]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One server and three sites, which all kills share."""
    with deployed(tmp_path_factory.mktemp("kills"), 3) as trial:
        yield trial


@pytest.mark.slow
@pytest.mark.parametrize("run", range(10))
def test_a_site_or_the_server_killed_at_a_random_moment(shared: Deployment, run: int) -> None:
    """Even runs kill in training, odd ones in recovery: no recorded round or step is lost or changed."""
    draw, late = random.Random(1800 + run), run % 2 == 1
    party, wanted = draw.choice(["localhost", "site-1", "site-3"]), draw.randrange(1, 4)
    place, history, out = shared.place, shared.place / f"h{run}", shared.place / f"out{run}"
    folder = training(place, f"train{run}", history, rounds=5, attackers="site-2")
    given = {"history": str(history), "malicious": "site-2", "recovered": str(out), "method": "retrain"}
    again = recovery(folder, f"recover{run}", given)
    job = shared.submit(folder)
    if late:
        until(lambda: History.open(history).closed, shared)
        job = shared.submit(again)
    until(lambda: (steps(out) if late else recorded(history)) >= wanted, shared)
    time.sleep(draw.random())
    killed_and_back(shared, job, party)
    before, done = [r.after for r in History.open(history).rounds], steps(out)
    if not late:
        train(shared, folder, history)
    recover(shared, again, out)
    found = History.open(history)
    assert History.verify(history) == []
    assert [r.after for r in found.rounds][: len(before)] == before
    assert len(found.rounds) == 5
    model = RecoveryFolder.open(out / "retrain").model(found).reshape(65, 10)
    assert np.abs(model - honest_model(5)).max() < 1e-5
    print(
        f"killed {party} in {'recovery' if late else 'training'}: {len(before)} rounds, {done} steps before"
    )
