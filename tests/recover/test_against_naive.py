"""Crab by plain loops over plain lists, compared on random trainings and misbehaving clients."""

import tempfile
import tracemalloc
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from fedcrab import History, Plan, Round, Updates, plan
from fedcrab.recover import crab
from fedcrab.recover.crab import planned_lengths
from fedcrab.seeds import rng_for
from recover.scenes import Answering
from trials.trainings import Training, trainings


@dataclass(frozen=True)
class Options:
    gap: bool
    cap: float
    settle: int


def answer(model: np.ndarray, client: str, t: int, epochs: object = None) -> tuple[np.ndarray, float] | None:
    """A pull towards the client's own point, of a length far from the history's; at times nonsense."""
    rng = rng_for(11, client, t)
    kind = rng.choice(["usual", "zero", "nan", "missing", "tiny"], p=[0.8, 0.05, 0.05, 0.05, 0.05])
    if kind == "missing":
        return None
    pull = rng_for(12, client).normal(size=len(model)) - 0.3 * model + 0.1 * rng.normal(size=len(model))
    scale = {"usual": rng.choice([0.05, 1.0, 7.0]), "zero": 0.0, "nan": np.nan, "tiny": 1e-30}[kind]
    return (scale * pull).astype(np.float32), float(rng_for(13, client).integers(1, 9))


def length(training: Training, client: str, first: int, last: int) -> float:
    """The sum of a client's norms over these rounds."""
    total = 0.0
    for s in range(first, last + 1):
        for earlier in range(s, -1, -1):
            updates = training.rounds[earlier].updates
            if client in updates.clients:
                total += float(np.linalg.norm(updates.vectors[updates.clients.index(client)].astype(float)))
                break
    return total


def naive_crab(training: Training, decided: Plan, start: np.ndarray, options: Options) -> list[np.ndarray]:
    """Every model of the replay."""
    model, models, previous = start, [], None
    for place, (t, clients) in enumerate(asked_in(training, decided, options).items()):
        total, weight = np.zeros(len(model)), 0.0
        for client in clients:
            answered = answer(model, client, t)
            if answered is None or not np.isfinite(answered[0]).all():
                continue
            fresh = answered[0].astype(np.float64)
            size = float(np.linalg.norm(fresh))
            if size == 0:
                continue
            if place < len(decided.replay) - options.settle:
                first = previous + 1 if options.gap and previous is not None else t
                fresh = fresh * min(length(training, client, first, t) / size, options.cap)
            total, weight = total + answered[1] * fresh, weight + answered[1]
        if weight:
            model = model + (total / weight).astype(np.float32)
        models.append(model)
        previous = t
    return models


def asked_in(training: Training, decided: Plan, options: Options) -> dict[int, list[str]]:
    """The honest selected; in the last rounds everybody honest who took part."""
    found = {}
    for place, (t, clients) in enumerate(decided.replay):
        everyone = [c for c in training.rounds[t].updates.clients if c not in decided.malicious]
        found[t] = everyone if place >= len(decided.replay) - options.settle else list(clients)
    return found


OPTIONS = [
    Options(gap=False, cap=100, settle=0),
    Options(gap=True, cap=3, settle=2),
    Options(gap=True, cap=inf, settle=0),
    Options(gap=False, cap=0.5, settle=1),
    Options(gap=True, cap=0.5, settle=50),
]


def check(training: Training) -> None:
    """One history, every option from several rollbacks: recording is what takes the time."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "h"
        with History.create(
            path, training.initial_model, initial_loss=2.3, selection=training.selection
        ) as history:
            for r in training.rounds:
                history.record(r)
        bad = training.malicious & set(history.clients)
        assume(bad and bad < set(history.clients))
        for beta in (0.0, 0.5, 1e9):
            for options in OPTIONS:
                compare(training, plan(history, bad, beta), options)


def compare(training: Training, decided: Plan, options: Options) -> None:
    start = training.rounds[decided.rollback_round].start
    expected = naive_crab(training, decided, start, options)
    steps = list(crab(decided, Answering(answer), gap=options.gap, cap=options.cap, settle=options.settle))
    assert [s.round for s in steps] == [t for t, _ in decided.replay]
    for step, model in zip(steps, expected, strict=True):
        np.testing.assert_allclose(step.model, model, rtol=1e-3, atol=1e-4 * max(1, np.abs(model).max()))
        asked = asked_in(training, decided, options)[step.round]
        assert sorted([*step.clients, *(r.client for r in step.dropped)]) == sorted(asked)
        assert all(c.ratio > options.cap for c in step.capped)


relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(relaxed, max_examples=15)
@given(trainings())
def test_crab_is_what_plain_loops_give(training: Training) -> None:
    check(training)


@pytest.mark.slow
@settings(relaxed, max_examples=400)
@given(trainings())
def test_crab_is_what_plain_loops_give_many_times(training: Training) -> None:
    check(training)


def test_lengths_of_those_who_replay_and_of_nobody_else(tmp_path: Path) -> None:
    """With 95 new ids per round, a table of all clients by all rounds would hold 9,500 × 100 numbers."""
    rng, model = np.random.default_rng(5), np.zeros(4, np.float32)
    with History.create(tmp_path / "h", model, initial_loss=1.0) as history:
        for t in range(100):
            names = sorted(["bad", "a", "b", "c", "d", *(f"new {t} {n}" for n in range(95))])
            vectors = rng.normal(size=(100, 4)).astype(np.float32)
            updates, step = Updates(tuple(names), vectors, np.ones(100)), vectors.mean(axis=0)
            history.record(Round(t, model, updates, step, 1.0 / (t + 1), 0.1))
            model = model + step
    history = History.open(tmp_path / "h")
    decided = plan(history, {"bad"}, beta=0)
    for gap in (True, False):
        tracemalloc.start()
        lengths = planned_lengths(decided, gap)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4_000_000
        previous = None
        for t, clients in decided.replay:
            first = previous + 1 if gap and previous is not None else t
            assert lengths[t].keys() == {*clients}
            for client in clients:
                assert lengths[t][client] == pytest.approx(naive_length(history, client, first, t), rel=1e-12)
            previous = t


def naive_length(history: History, client: str, first: int, last: int) -> float:
    total = 0.0
    for s in range(first, last + 1):
        for entry in reversed(history.rounds[: s + 1]):
            if client in entry.clients:
                total += float(entry.norms[entry.clients.index(client)])
                break
    return total
