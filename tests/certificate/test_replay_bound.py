"""The bound of a corrected replay, against plain replays with known constants."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificate.test_soundness import distance, in_memory
from fedcrab import ConfigError, plan
from fedcrab.certificate import SOUND, certify
from fedcrab.certificate.certificate import FORMAT, SECOND, THIRD, build_certificate, tables
from fedcrab.certificate.enclosure import Problem, answers_of, enclosed
from fedcrab.certificate.poison import Premises
from fedcrab.certificate.replay_bound import replay_bound, strayed
from fedcrab.certificate.verify import statement_problems
from fedcrab.recover import replay, retrain
from fedcrab.recover.folder import RecoveryArtifacts
from fedcrab.recover.replay_record import ReplayRecord
from recover.scenes import bits
from trials.convex import Training, long_training, random_training
from trials.naive_replay import naive_replay
from trials.tightness import constants, replayed


def bounds(training: Training, seed: int) -> tuple[float, float, float] | None:
    """The proved distance of a naive replay, the same with the ball, and the distance."""
    rng, given = np.random.default_rng((seed, 5)), training.problem.assumptions()
    decided = plan(training.history, training.malicious, beta=float(rng.choice([0.0, 0.3, 3.0])))
    every, asked = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    models, records = naive_replay(decided, training.problem, every=every, asked=asked, seed=seed)
    premises, first = Premises.of(decided, given), decided.rollback_round
    alone = replay_bound(premises, records)
    known = Problem.of(premises, answers_of(decided, ()))
    balls = enclosed(known)
    near = [balls[t].reach(known.flat(models[max(t - first, 0)])) for t in range(len(balls))]
    both = replay_bound(premises, records, enclosed=near)
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


WAYS = {
    "default": {},
    "everybody": {"every": 1, "asked": 100},
    "nobody": {"proof": 1e5},
    "certified": {"proof": 0.1},
}


def check_methods(seeds: range, make) -> None:
    """Replays as recover runs them, and their certificates; a violation raises."""
    found = replayed(partial(make, bits=8), seeds, WAYS)
    assert all(row[0] == 0 for row in found["nobody"])
    near, far = (np.median([row[2] for row in found[way]]) for way in ("certified", "nobody"))
    assert near < far  # whom it asks is worth the while


def test_certificates_of_replays_hold() -> None:
    check_methods(range(7000, 7002), long_training)
    replayed(partial(random_training, bits=4), range(7000, 7006), WAYS)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(20000, 20400, 100))
def test_certificates_of_hundreds_of_replays_hold(first: int) -> None:
    check_methods(range(first, first + 25), long_training)
    replayed(partial(random_training, bits=8), range(first, first + 100), WAYS)


def test_a_certified_replay_that_asks_everybody_is_the_retraining(tmp_path) -> None:
    training = long_training(3, tmp_path / "h", bits=8)
    decided = plan(training.history, training.malicious)
    steps = list(replay(decided, training.problem, proof=0.0, **constants(training.problem)))
    goal = list(retrain(decided, training.problem))[-1].model
    assert distance(steps[-1].model, goal) < 1e-4
    with pytest.raises(ConfigError, match="known for convex losses only"):
        replay(decided, training.problem, proof=0.1)
    with pytest.raises(ConfigError, match="spread must be"):
        replay(decided, training.problem, proof=0.1, centre=0.5, spread=-1.0)


@given(st.integers(0, 10**6), st.integers(1, 9))
@settings(max_examples=5, deadline=None)
def test_a_certified_replay_resumes_with_the_same_bits(seed: int, done: int) -> None:
    with in_memory() as place:
        training = random_training(seed, place / "h", bits=8)
        decided = plan(training.history, training.malicious)
        how = {"proof": 0.1, **constants(training.problem)}
        whole = list(replay(decided, training.problem, **how))
        done = min(done, len(whole)) - 1
        rest = list(replay(decided, training.problem, after=whole[done], **how))
        assert bits(rest) == bits(whole[done + 1 :])


def test_an_older_certificate_of_a_replay_still_verifies(tmp_path) -> None:
    training = long_training(4, tmp_path / "h", bits=8)
    decided = plan(training.history, training.malicious)
    steps = list(replay(decided, training.problem))
    told = {"method": "replay", "assumptions": training.problem.assumptions()}
    now = certify(decided, steps[-1].model, steps, **told)
    assert now.format == FORMAT
    assert now.terms["distance.replayed"].flag == SOUND
    evidence = RecoveryArtifacts(steps[-1].model, tables(steps))
    for older in (SECOND, THIRD):
        then = build_certificate(now.inputs, decided, evidence, older)
        assert ("distance.replayed" in then.terms) == (older == THIRD)
        assert then.terms["distance.enclosed"].value >= now.terms["distance.enclosed"].value
        assert statement_problems(then.to_table(), training.history, evidence) == []
    assert statement_problems(now.to_table(), training.history, evidence) == []
    broken = [{**s, "record": {**s["record"], "error": s["record"]["error"] / 2}} for s in tables(steps)]
    changed = RecoveryArtifacts(steps[-1].model, tuple(broken))
    assert any("steps" in p for p in statement_problems(now.to_table(), training.history, changed))


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
    assert (found.inner, found.apart, found.others, found.stored, found.step) == (3.5, 2.0, 0.75, 0.375, 2.0)
    for centre in (0.0, 0.5, 1.0):  # a - P(C-1)v
        assert strayed(found, centre) == pytest.approx(np.hypot(1.75 - 0.75 * (centre - 1) * 2, 3), rel=1e-6)


def test_a_record_needs_everybody_and_finite_numbers() -> None:
    with pytest.raises(ConfigError, match="neither"):
        record(stored={})
    with pytest.raises(ConfigError, match="finite"):
        record(after=np.array([np.nan, 0], np.float32))
