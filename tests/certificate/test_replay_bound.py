"""The bound of a corrected replay, against plain replays with known constants."""

import numpy as np
import pytest

from certificate.test_soundness import distance, in_memory
from fedcrab import ConfigError, plan
from fedcrab.certificate.enclosure import Problem, answers_of, enclosed
from fedcrab.certificate.poison import distances, poison_bounds
from fedcrab.certificate.replay_bound import ReplayRecord, replay_bound
from fedcrab.recover import retrain
from trials.convex import Training, long_training, random_training
from trials.naive_replay import naive_replay


def bounds(training: Training, seed: int) -> tuple[float, float, float] | None:
    """The proved distance of a naive replay, the same with the ball, and the distance."""
    rng, given = np.random.default_rng((seed, 5)), training.problem.assumptions()
    decided = plan(training.history, training.malicious, beta=float(rng.choice([0.0, 0.3, 3.0])))
    every, asked = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    models, records = naive_replay(decided, training.problem, every=every, asked=asked, seed=seed)
    facts = poison_bounds(decided)
    psi, first = distances(facts, given.local_expansion()), decided.rollback_round
    alone = replay_bound(records, facts, psi, given, first=first)
    known = Problem.of(decided, facts, psi, given, answers_of(decided, ()))
    balls = enclosed(known)
    near = [balls[t].reach(known.flat(models[max(t - first, 0)])) for t in range(len(balls))]
    both = replay_bound(records, facts, psi, given, first=first, enclosed=near)
    truth = distance(models[-1], list(retrain(decided, training.problem))[-1].model)
    return alone, both, truth


def check(seeds: range, make) -> None:
    tight = []
    with in_memory() as place:
        for seed in seeds:
            training = make(seed, place / str(seed), bits=(4, 8)[seed % 2])
            alone, both, truth = bounds(training, seed)
            assert truth <= both <= alone * (1 + 1e-12), f"seed {seed}: {both} and {alone}, measured {truth}"
            tight.append(both < 20 * truth)
    assert sum(tight) > len(tight) / 4  # a bound that is always huge would be sound too


def test_no_replay_is_farther_than_its_bound() -> None:
    check(range(9000, 9020), random_training)
    check(range(9000, 9005), long_training)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10000, 12000, 500))
def test_no_replay_of_thousands_is_farther_than_its_bound(first: int) -> None:
    check(range(first, first + 500), random_training)
    check(range(first, first + 50), long_training)


def record(**changes) -> ReplayRecord:
    one = {"a": np.array([1.0, 0.0], np.float32)}
    asked = {
        "before": np.array([2, 0], np.float32),
        "after": np.array([4, 0], np.float32),
        "history": np.array([0, 0], np.float32),
        "examples": {"a": 1.0, "b": 3.0},
        "asked": one,
        "stored": {"b": np.array([0.0, 4.0], np.float32)},
        "errors": {"b": 0.5},
        "trained": (slice(0, 2),),
    }
    return ReplayRecord.of(3, **{**asked, **changes})


def test_a_record_by_hand() -> None:
    """Step (2, 0), a asked with a quarter: a = (2 - 1/4, -3), v = (2, 0), P = 3/4."""
    found = record()
    assert found.error == pytest.approx(np.hypot(1.75, 3))
    assert (found.inner, found.apart, found.others, found.stored) == (3.5, 2.0, 0.75, 0.375)
    for centre in (0.0, 0.5, 1.0):  # a - P(C-1)v
        assert found.strayed(centre) == pytest.approx(np.hypot(1.75 - 0.75 * (centre - 1) * 2, 3), rel=1e-6)


def test_a_record_needs_everybody_and_finite_numbers() -> None:
    with pytest.raises(ConfigError, match="neither"):
        record(stored={})
    with pytest.raises(ConfigError, match="finite"):
        record(after=np.array([np.nan, 0], np.float32))
