"""The same training and recovery in one process, in Flower's simulation engine and in a real deployment."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from deployment import Deployment, deployed, quickly, simulated
from safetensors.numpy import load_file
from scenes import SITES, Plain, plainly_recorded

from fedcrab import History, plan, recover
from fedcrab.history.snapshots import read_model


def run_both(trial: Deployment, place: Path, malicious: str, *more: str, **config: object) -> None:
    """Train and recover, as a user would: two commands."""
    common = {"history": str(place / "h"), "recovered": str(place / "out"), **config}
    assert trial.finished(trial.flwr_run(*more, **common), 900) == "finished:completed"
    request = {"mode": "recover", "malicious": malicious, "method": "crab"}
    assert trial.finished(trial.flwr_run(*more, **common, **request), 900) == "finished:completed"


def assert_same(place: Path, malicious: str, sites: int, rounds: int) -> None:
    """The decisions of a fleet of one process, and its recovered model to 1e-5."""
    ours = plainly_recorded(place / "plain", SITES[:sites], rounds=rounds)
    theirs = History.open(place / "h")
    assert History.verify(place / "h") == []
    assert [bare(r.clients) for r in theirs.rounds] == [bare(r.clients) for r in ours.rounds]
    assert theirs.kept == ours.kept
    assert [r.selected.tolist() for r in theirs.rounds] == [r.selected.tolist() for r in ours.rounds]
    np.testing.assert_allclose(theirs.final_model(), ours.final_model(), atol=1e-5)
    mine, found = plan(ours, ["site-2"]), plan(theirs, [malicious])
    assert (found.rollback_round, found.index, found.candidates) == (
        mine.rollback_round,
        mine.index,
        mine.candidates,
    )
    assert [(t, bare(c)) for t, c in found.replay] == [(t, bare(c)) for t, c in mine.replay]
    assert found.sensitivity == pytest.approx(mine.sensitivity, rel=1e-4)
    out = place / "out" / "crab-hardened"
    digest = json.loads((out / "summary.json").read_text())["model_sha256"]
    recovered = read_model(out / "model.safetensors", digest, theirs.charter.layout)
    *_, last = recover.crab(mine, Plain())
    np.testing.assert_allclose(recovered, last.model, atol=1e-5)
    assert Plain().loss(recovered) < Plain().loss(theirs.final_model())


def bare(clients: tuple[str, ...]) -> list[str]:
    return [client.rpartition("-")[2] for client in clients]


@pytest.mark.slow
def test_the_simulation_engine_gives_the_same(tmp_path: Path) -> None:
    with simulated(Deployment(tmp_path / "trial", 0)) as trial:
        engine = ("--federation-config", "num-supernodes=8 client-resources-num-cpus=1")
        run_both(trial, tmp_path, "2", *engine, rounds=4, sites=8)
    assert History.open(tmp_path / "h").clients == tuple("01234567")
    assert_same(tmp_path, "2", sites=8, rounds=4)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with simulated(Deployment(tmp_path_factory.mktemp("engine") / "trial", 0)) as trial:
        yield trial


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["FedAdam", "FedMedian", "private"])
def test_strategies_in_the_simulation_engine(strategy: str, engine: Deployment, tmp_path: Path) -> None:
    """Recovered by ``retrain``: what Flower alone makes of the honest sites, in the same engine."""

    def run(count: int, **config: object) -> None:
        nodes = ("--federation-config", f"num-supernodes={count} client-resources-num-cpus=1")
        started = engine.flwr_run(*nodes, strategy=strategy, rounds=3, sites=count, **config)
        assert engine.finished(started, 900) == "finished:completed", engine.log("link")[-3000:]

    paths = {"history": str(tmp_path / "h"), "recovered": str(tmp_path / "out")}
    run(5, **paths)
    run(5, mode="recover", malicious="2", method="retrain", **paths)
    run(4, mode="alone", left_out=2, recovered=str(tmp_path / "alone.npz"))
    assert History.verify(tmp_path / "h") == []
    recovered, alone = load_file(tmp_path / "out/retrain/model.safetensors"), np.load(tmp_path / "alone.npz")
    assert set(recovered) == set(alone)
    for name in recovered:  # Flower's FedAdam makes a fraction of a counter, which fedcrab keeps whole
        counter = name == "steps"
        np.testing.assert_allclose(recovered[name], alone[name], atol=0.5 if counter else 1e-5)
    poisoned = History.open(tmp_path / "h").final_model()
    assert np.abs(poisoned[: recovered["weight"].size] - recovered["weight"].ravel()).max() > 1e-3


@pytest.mark.long(40)
def test_a_deployment_gives_the_same(tmp_path: Path) -> None:
    with quickly(Deployment(tmp_path / "trial", 3)) as made, deployed(made) as trial:
        run_both(trial, tmp_path, "site-2", rounds=2, sites=3)
    assert_same(tmp_path, "site-2", sites=3, rounds=2)


@pytest.mark.slow
def test_a_deployment_of_eight_gives_the_same(tmp_path: Path) -> None:
    with deployed(Deployment(tmp_path / "trial", 8)) as trial:
        run_both(trial, tmp_path, "site-2", rounds=4, sites=8)
    assert_same(tmp_path, "site-2", sites=8, rounds=4)
