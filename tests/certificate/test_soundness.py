"""Every bound that is called sound, against the distance itself, on convex problems with known constants."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from fedcrab import plan
from fedcrab.certificate import SOUND, Certificate, certify
from fedcrab.recover import CRAB_PRESETS, Answers, RecordedFleet, Step, ask_at, crab, retrain
from trials.convex import Problem, Training, random_training


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one.astype(np.float64) - other))


def residual(problem: Problem, model: np.ndarray, honest: list[str]) -> float:
    updates = problem.train(model, honest, round=0)
    return float(np.linalg.norm(updates.weights @ updates.vectors.astype(np.float64) / updates.weights.sum()))


def gap(problem: Problem, honest: list[str], model: np.ndarray) -> float | None:
    """At least F(model) - inf F: losses of 0 or more, above a parabola where they are strongly convex."""
    if problem.mu < 0:
        return None
    weights, point = [problem.clients[c].examples for c in honest], model.astype(float)
    slopes = [problem.clients[c].loss(point, 0)[1] for c in honest]
    slope = np.average(slopes, axis=0, weights=weights)
    above = problem.honest_loss(point, honest)
    return min(above, float(slope @ slope) / (2 * problem.mu)) if problem.mu else above


def before(training: Training, since: int) -> Step | None:
    """What a training goes on after that keeps everything sent before this round."""
    return Step(since - 1, training.models[since]) if since else None


def certified(training: Training, seed: int) -> tuple[Certificate, dict[str, float]]:
    """A certificate with everything declared, and what each of its bounds is a bound of."""
    rng, problem, history = np.random.default_rng((seed, 1)), training.problem, training.history
    settings = {"evidence": str(rng.choice(["all", "stored"])), "rule": str(rng.choice(["prefix", "last"]))}
    since = training.since
    decided = plan(
        history, training.malicious, since=since, beta=float(rng.choice([0, 0.3, 3, 1e9])), **settings
    )
    preset = CRAB_PRESETS[str(rng.choice(["paper", "hardened"]))]
    kept: list[Answers] = []  # of a quarter nothing, of a half with everybody's answers to the result
    fleet = problem if seed % 4 == 0 else RecordedFleet(problem, kept.append)
    steps = list(crab(decided, fleet, **preset))
    again = list(retrain(decided, problem, after=before(training, since)))
    if seed % 4 > 1:
        ask_at(decided, fleet, steps[-1].model)
    back, model = training.models[decided.rollback_round], steps[-1].model
    scratch = [*training.models[: since + 1], *(s.model for s in again)]
    honest = sorted({*problem.clients} - training.malicious)
    beyond = [back, *_onwards(problem, back, honest, len(history.rounds))]
    given = problem.assumptions(
        residual=residual(problem, model, honest),
        gradient=problem.steepest,
        initial_gap=gap(problem, honest, training.models[0]),
        rollback_gap=gap(problem, honest, back),
    )
    certificate = certify(
        decided,
        model,
        steps,
        method="crab",
        crab=preset,
        assumptions=given,
        retrained_steps=again,
        answers=kept,
    )
    t = decided.rollback_round
    gone, far = distance(model, back), distance(model, scratch[-1])
    later = sum(distance(a, b) for a, b in zip(scratch[t:], scratch[t + 1 :], strict=False))
    truth = dict.fromkeys(("path.planned", "path.travelled", "path.moved"), gone)
    truth |= {
        f"retraining.{n}": later for n in ("measured", "constants", "ledger", "fading", "shortest", "descent")
    }
    truth |= {f"distance.{n}": far for n in ("parts", "poisoned", "residual", "measured", "coupled", "kept")}
    truth |= {f"distance.{n}": far for n in ("anchored", "enclosed")}
    truth |= {
        "poison.enclosed": distance(training.models[-1], scratch[-1]),
        "poison.rollback": distance(back, scratch[t]),
        "poison.whole": distance(training.models[-1], scratch[-1]),
    }
    truth |= {"theorem1.retraining": distance(beyond[-1], back)}
    return certificate, truth


def _onwards(problem: Problem, start: np.ndarray, honest: list[str], rounds: int) -> list[np.ndarray]:
    """Training with the honest clients from this model on, as Theorem 1 has it."""
    models = [start]
    for t in range(rounds):
        updates = problem.train(models[-1], honest, round=t)
        models.append(
            models[-1] + (updates.weights @ updates.vectors / updates.weights.sum()).astype(np.float32)
        )
    return models[1:]


def try_one(seed: int, path: Path) -> Counter[str]:
    """Check one random history; which bounds were called sound."""
    bits = (None, 4, None, 8)[seed // 4 % 4]  # some histories keep the updates
    certificate, truth = certified(random_training(seed, path, late=seed % 3 == 0, bits=bits), seed)
    assert (certificate.terms["answers.refute"].value or 0.0) <= 1
    called = Counter()
    for name, term in certificate.terms.items():
        if term.flag == SOUND and name in truth:
            assert term.value is not None
            assert truth[name] <= term.value, f"seed {seed}: {name} says {term.value}, measured {truth[name]}"
            called[name] += 1
    return called


PROVED = [
    *("path.planned", "path.travelled", "path.moved", "poison.rollback", "poison.whole"),
    *(
        "retraining.measured",
        "retraining.constants",
        "retraining.ledger",
        "retraining.fading",
        "retraining.shortest",
    ),
    *(
        "retraining.descent",
        "distance.parts",
        "distance.poisoned",
        "distance.residual",
        "distance.coupled",
        "distance.anchored",
        "distance.enclosed",
        "poison.enclosed",
        "theorem1.retraining",
    ),
]


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder in memory where there is such a place: a thousand histories make a disk write for minutes."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture
def place() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


def try_many(seeds: range, place: Path, least: int) -> None:
    called = Counter()
    for seed in seeds:
        called += try_one(seed, place / str(seed))
        shutil.rmtree(place / str(seed))
    assert {name for name in PROVED if called[name] < least} == set(), called


def test_no_sound_bound_is_violated(place: Path) -> None:
    try_many(range(72), place, 2)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 4000, 500))
def test_no_sound_bound_is_violated_by_thousands(first: int, place: Path) -> None:
    try_many(range(first, first + 500), place, 17)
