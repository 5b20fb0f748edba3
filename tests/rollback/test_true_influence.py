"""Preset ``hardened`` never reports less influence than the attackers truly had, whatever they send."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcrab import PRESETS, History, Plan, Round, Selective, Updates, plan
from fedcrab.attack import Attackers, evade
from fedcrab.seeds import rng_for
from fedcrab.types import Fleet
from recover.scenes import Answering, Quadratics
from trials.naive import mean, select_clients
from trials.trainings import Training, trainings

relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck))
SIZE, CLIENTS, ROUNDS = 6, [str(i) for i in range(7)], 10


def displacement(training: Training, bad: frozenset[str]) -> list[float]:
    """Before each round: ‖where the model is - where the same honest updates alone would have put it‖."""
    away, found = np.zeros(len(training.initial_model)), []
    for r in select_clients(training):
        found.append(float(np.linalg.norm(away)))
        honest = [c for c in r.vectors if c not in bad]
        if r.vectors:
            away = away + mean(r, [*r.vectors]) - (mean(r, honest) if honest else 0.0)
    return found


def rounding(training: Training) -> float:
    """What sums of these updates are exact to: where attackers send copies, the truth is nothing else."""
    return 1e-14 * sum(float(np.abs(r.updates.vectors).sum()) for r in training.rounds)


def assert_never_less(decision: Plan, truth: list[float], exact_to: float = 0.0) -> None:
    for t, s in zip(decision.candidates, decision.sensitivity, strict=True):
        assert s >= truth[t] * (1 - 1e-6) - 1e-6 * max(truth) - exact_to


@settings(relaxed, max_examples=25)
@given(trainings())
def test_of_any_training(training: Training) -> None:
    check_displacement(training)


@pytest.mark.slow
@settings(relaxed, max_examples=1000)
@given(trainings())
def test_of_any_training_many_times(training: Training) -> None:
    check_displacement(training)


def check_displacement(training: Training) -> None:
    with tempfile.TemporaryDirectory() as place:
        with History.create(
            Path(place) / "h", training.initial_model, initial_loss=2.3, selection=training.selection
        ) as history:
            for r in training.rounds:
                history.record(r)
        bad = training.malicious & set(history.clients)
        if bad and bad < set(history.clients):
            decision = plan(history, bad, **PRESETS["hardened"])
            assert_never_less(decision, displacement(training, bad), rounding(training))


def hostile(kind: str, seed: int, bad: frozenset[str]) -> Fleet:
    """Clients on quadratics, whose steps bring any two models nearer; the bad ones send what they like."""
    honest = Quadratics(SIZE, ill=bad)

    def answer(model, client, t, epochs):
        update, weight = honest.answer(model, client, t)
        rng = rng_for(seed, t, client)
        if client in bad and kind == "noise":
            update = update + 10 ** rng.uniform(-3, 2) * rng.normal(size=SIZE)
        elif client in bad and kind == "to and fro":
            update = update + (5 if t % 2 else -5) * rng_for(seed, "push").normal(size=SIZE)
        return update, weight

    fleet = Answering(answer)
    return evade(fleet, Attackers(bad)) if kind == "evade" else fleet


def trained(fleet: Fleet, clients: list[str], path: Path | None = None) -> list[np.ndarray]:
    """The models before each round."""
    model, models, rounds = np.zeros(SIZE, np.float32), [], []
    for t in range(ROUNDS):
        updates = fleet.train(model, clients, round=t)
        step = np.average(updates.vectors.astype(float), axis=0, weights=updates.weights).astype(np.float32)
        models.append(model)
        rounds.append(Round(t, model, updates, step, 0.9**t, float(rng_for(1, t).random())))
        model = model + step
    if path:
        with History.create(path, models[0], initial_loss=1.0, selection=Selective()) as history:
            for r in rounds:
                history.record(r)
    return models


KINDS = st.sampled_from(["ill", "noise", "evade", "to and fro"])
NAMED = st.sets(st.sampled_from(CLIENTS), min_size=1, max_size=5)


@settings(relaxed, max_examples=12)
@given(KINDS, st.integers(0, 10**6), NAMED)
def test_of_training_without_them(kind: str, seed: int, named: set[str]) -> None:
    check_counterfactual(kind, seed, named)


@pytest.mark.slow
@settings(relaxed, max_examples=500)
@given(KINDS, st.integers(0, 10**6), NAMED)
def test_of_training_without_them_many_times(kind: str, seed: int, named: set[str]) -> None:
    check_counterfactual(kind, seed, named)


def check_counterfactual(kind: str, seed: int, named: set[str]) -> None:
    """Convex and smooth: S bounds the distance to the training that never had these clients."""
    bad = frozenset(named)
    with tempfile.TemporaryDirectory() as place:
        with_them = trained(hostile(kind, seed, bad), CLIENTS, Path(place) / "h")
        without = trained(hostile(kind, seed, bad), [c for c in CLIENTS if c not in bad])
        truth = [float(np.linalg.norm(a - b)) for a, b in zip(with_them, without, strict=True)]
        assert max(truth) > 0
        assert_never_less(plan(History.open(Path(place) / "h"), bad, **PRESETS["hardened"]), truth)


def test_the_paper_reports_nothing_of_those_who_hide(tmp_path: Path) -> None:
    with History.create(tmp_path / "h", np.zeros(3, np.float32), initial_loss=1.0) as history:
        model = np.zeros(3, np.float32)
        for t in range(6):
            sent = {"a": ([1, 0, 0], 1), "b": ([1, 0, 0], 1), "m": ([0, 0.5, 0], 1)}
            step = np.array([2 / 3, 1 / 6, 0], np.float32)
            history.record(Round(t, model, Updates.of(sent), step, 1.0, 0.1))
            model = model + step
    hardened, paper = (plan(history, {"m"}, **PRESETS[name]) for name in ("hardened", "paper"))
    true = float(np.linalg.norm(np.array([2 / 3, 1 / 6, 0]) - [1, 0, 0]))
    assert hardened.sensitivity[-1] == pytest.approx(true * hardened.candidates[-1])
    assert paper.sensitivity[-1] == 0
