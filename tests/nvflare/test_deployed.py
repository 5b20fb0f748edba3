"""Provisioned sites and a server in processes of their own: names from certificates, kills, recovery."""

import random
import sys
import time
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
        recover(trial, recovery(tmp_path, "recover", given), out)
    model = RecoveryFolder.open(out / "retrain").model(found).reshape(65, 10)
    assert np.abs(model - honest_model(8)).max() < 1e-5
    x, y = task.held_out()
    poisoned = found.final_model().reshape(65, 10)
    fooled = [
        (task.probabilities(w, task.marked(x[y != 0])).argmax(1) == 0).mean() for w in (poisoned, model)
    ]
    assert fooled[0] > 0.5 > 0.2 > fooled[1]


@pytest.mark.slow
def test_sites_and_servers_killed_at_random_moments(tmp_path: Path) -> None:
    """Ten kills in training and in recovery: no recorded round, and no step, is lost or changed."""
    draw, told = random.Random(18), []
    with deployed(tmp_path, 3) as trial:
        for run in range(10):
            party, late = draw.choice(["localhost", "site-1", "site-3"]), run % 2 == 1
            history, out = tmp_path / f"h{run}", tmp_path / f"out{run}"
            folder = training(tmp_path, f"train{run}", history, rounds=5, attackers="site-2")
            given = {
                "history": str(history),
                "malicious": "site-2",
                "recovered": str(out),
                "method": "retrain",
            }
            again = recovery(tmp_path, f"recover{run}", given)
            job = trial.submit(folder)
            if late:
                until(lambda h=history: History.open(h).closed, trial)
                job = trial.submit(again)
            wanted = draw.randrange(1, 4)
            until(
                lambda wanted=wanted, late=late, h=history, o=out: (
                    (steps(o) if late else recorded(h)) >= wanted
                ),
                trial,
            )
            time.sleep(draw.random())
            killed_and_back(trial, job, party)
            before, done = [r.after for r in History.open(history).rounds], steps(out)
            if not late:
                train(trial, folder, history)
            recover(trial, again, out)
            found = History.open(history)
            assert History.verify(history) == []
            assert [r.after for r in found.rounds][: len(before)] == before
            assert len(found.rounds) == 5
            model = RecoveryFolder.open(out / "retrain").model(found).reshape(65, 10)
            assert np.abs(model - honest_model(5)).max() < 1e-5
            told.append((party, "recovery" if late else "training", len(before), done))
            print("killed", *told[-1], flush=True)
    assert len(told) == 10
