"""Crab by plain loops over plain lists, compared on random trainings and misbehaving clients."""

import tempfile
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from fedcrab import History, Plan, plan
from fedcrab.recover import crab
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
    for place, (t, clients) in enumerate(decided.replay):
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
        asked = dict(decided.replay)[step.round]
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
