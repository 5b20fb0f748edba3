"""Twenty runs of a deployment, in each of which something is killed at a random moment."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from deployment import AMPLE, Deployment, deployed
from scenes import SITES, Plain

from fedcrab import History, HistoryError, plan, recover
from fedcrab.recover.saved_steps import saved_steps

pytestmark = pytest.mark.slow
COUNT, ROUNDS = 4, 3
CLEAR = ("usable answer", "not connected", "clients are connected")  # what a run may end with
CASES = [
    (who, when, n) for n in range(5) for who in ("supernode", "serverapp") for when in ("train", "recover")
]


@pytest.fixture(scope="module")
def trial(tmp_path_factory) -> Iterator[Deployment]:
    with deployed(Deployment(tmp_path_factory.mktemp("killed") / "trial", COUNT)) as found:
        yield found


@pytest.mark.parametrize(("who", "when", "number"), CASES, ids=lambda part: str(part))
def test_killed_at_a_random_moment(
    who: str, when: str, number: int, trial: Deployment, tmp_path: Path
) -> None:
    chance = random.Random(f"{who} {when} {number}")
    run_to_the_end(trial, tmp_path, "train", chance if when == "train" else None, who)
    history = History.open(tmp_path / "h")
    assert History.verify(tmp_path / "h") == []
    assert [entry.index for entry in history.rounds] == list(range(ROUNDS))
    assert all(len(set(entry.clients)) == len(entry.clients) for entry in history.rounds)
    assert_rounds_are_real(history)
    run_to_the_end(trial, tmp_path, "recover", chance if when == "recover" else None, who)
    assert_recovery_is_real(history, tmp_path / "out" / "retrain")
    everybody_back(trial)


def run_to_the_end(trial: Deployment, place: Path, mode: str, chance: random.Random | None, who: str) -> None:
    """Started again until it is done; what was on the disk when the victim died is there in the end."""
    config = {"history": str(place / "h"), "recovered": str(place / "out"), "mode": mode, "method": "retrain"}
    patience = {"deadline": 25.0, "quorum": 0.5, "attempts": 4, "slowly": 0.3}
    more = {"malicious": "site-2", "sites": COUNT, "rounds": ROUNDS, **patience}
    for attempt in range(4):
        run = trial.flwr_run(**config, **more)
        seen = strike(trial, chance, who, place) if chance and not attempt else []
        status = trial.finished(run, 900)
        assert on_disk(place)[: len(seen)] == seen, "a recorded round was lost or changed"
        if status == "finished:completed":
            return
        assert who == "serverapp" or any(words in status for words in CLEAR), status
        everybody_back(trial)
    raise AssertionError(f"never done: {status}")


def strike(trial: Deployment, chance: random.Random, who: str, place: Path) -> list[object]:
    """Wait for a random while, then kill; what was recorded by then."""
    end = time.monotonic() + AMPLE
    while not trial.ours("flwr-serverapp"):
        assert time.monotonic() < end, trial.log("link")[-2000:]
        time.sleep(0.1)
    time.sleep(chance.uniform(0, 25))
    seen = on_disk(place)
    if who == "serverapp":
        for pid in trial.ours("flwr-serverapp"):
            os.kill(pid, signal.SIGKILL)
    else:
        trial.kill(chance.choice(["site-0", "site-1", "site-3"]))
    return seen


def on_disk(place: Path) -> list[object]:
    """Every round that is recorded, every step that is done."""
    try:
        rounds = [entry.digests for entry in History.open(place / "h").rounds]
    except HistoryError:
        rounds = []
    done = place / "out" / "retrain"
    return [*rounds, *(saved_steps(done) if done.is_dir() else [])]


def everybody_back(trial: Deployment) -> None:
    """Start the SuperNodes that are gone; the SuperLink holds a killed one for connected for a minute."""
    for name in trial.names:
        end = time.monotonic() + AMPLE
        while name not in trial.processes or trial.processes[name].poll() is not None:
            assert time.monotonic() < end, trial.log(name)[-2000:]
            before = len(trial.log(name))
            trial.start_node(name)
            while trial.processes[name].poll() is None and "SuperNode ID" not in trial.log(name)[before:]:
                time.sleep(0.3)
            time.sleep(1)


def assert_rounds_are_real(history: History) -> None:
    """Each kept round has the updates that its clients make from its model, each once."""
    for t in history.kept:
        entry = history.rounds[t]
        again = Plain().train(history.model(t), entry.clients, round=t)
        trained = again.vectors[:, :-1]
        np.testing.assert_allclose(entry.norms, np.linalg.norm(trained, axis=1), rtol=1e-5)
        left_out = {r.client for r in entry.rejected}
        assert set(entry.clients) | left_out == set(SITES[:COUNT])
        assert not set(entry.clients) & left_out


def assert_recovery_is_real(history: History, out: Path) -> None:
    steps = saved_steps(out)
    assert [step["round"] for step in steps] == list(range(ROUNDS))
    assert not any("site-2" in step["asked"] for step in steps)
    assert (out / "model.safetensors").is_file()
    if not any(step["dropped"] for step in steps):
        *_, last = recover.retrain(plan(history, ["site-2"]), Plain())
        assert steps[-1]["lengths"] == pytest.approx(last.lengths, rel=1e-4)
