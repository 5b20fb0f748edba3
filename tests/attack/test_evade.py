"""Evade is orthogonal to the aggregate that results, its own weight included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attack.tiny import FixedFleet
from fedcrab.aggregate import fedavg
from fedcrab.attack import Attackers, evade, sign_flip

EVIL = Attackers(frozenset("ab"))


def fleet_of(seed, honest="cdefg", d=30):
    rng = np.random.default_rng(seed)
    return FixedFleet({c: (rng.normal(0.5, 1, d), int(rng.integers(1, 50))) for c in "ab" + honest})


def cosines(updates):
    vectors = updates.vectors.astype(np.float64)
    aggregate = fedavg()(updates.vectors, updates.weights).astype(np.float64)
    return vectors @ aggregate / np.linalg.norm(vectors, axis=1) / np.linalg.norm(aggregate)


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), norm=st.none() | st.floats(1e-3, 1e3))
def test_it_is_orthogonal_to_the_resulting_aggregate(seed, norm):
    fleet = fleet_of(seed)
    updates = evade(fleet, EVIL, norm=norm).train(np.zeros(30, np.float32), fleet.answers, round=0)
    np.testing.assert_allclose(cosines(updates)[:2], 0, atol=1e-5)


def test_the_norm_is_as_given_and_the_poison_still_arrives():
    fleet = sign_flip(fleet_of(1), EVIL)
    poison = fleet.train(np.zeros(30, np.float32), "abcdefg", round=0).vectors[:2]
    updates = evade(fleet, EVIL, norm=0.7).train(np.zeros(30, np.float32), "abcdefg", round=0)
    assert np.linalg.norm(updates.vectors[0]) == pytest.approx(0.7, rel=1e-5)
    assert updates.vectors[0] @ poison.mean(axis=0) > 0


@pytest.mark.parametrize("seed", range(5))
def test_the_selection_by_cosine_leaves_the_attackers_out(seed):
    fleet = fleet_of(seed, d=1000)
    poisoned = sign_flip(fleet, Attackers(frozenset("a")))  # so that evade has something to hide
    updates = evade(poisoned, EVIL).train(np.zeros(1000, np.float32), "abcdefg", round=0)
    scores = cosines(updates)
    assert abs(scores[:2]).max() < 1e-5
    assert scores[2:].min() > 0.1


def test_a_norm_too_large_to_hide_is_cut_to_where_most_poison_arrives():
    # H = (1, 0)·½, P = ½: ρ = ‖H‖/(P·√2) = 1/√2, half along, half across
    fleet = FixedFleet({"a": ([0, 3], 1), "c": ([1, 0], 1)})
    sent = evade(fleet, EVIL, norm=50.0).train(np.zeros(2, np.float32), "ac", round=0).vectors[0]
    np.testing.assert_allclose(sent, [-0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize(
    "answers",
    [
        {"a": ([1, 2], 1), "b": ([3, 1], 1)},  # nobody honest
        {"a": ([1, 2], 1), "c": ([0, 0], 1)},  # the honest stand still
        {"a": ([2, 4], 1), "c": ([1, 2], 1)},  # nothing across
        {"a": ([0, 0], 1), "c": ([1, 2], 1)},  # no poison
    ],
)
def test_where_nothing_can_be_orthogonal_the_poison_goes_as_it_is(answers):
    sent = evade(FixedFleet(answers), EVIL).train(np.zeros(2, np.float32), tuple(answers), round=0)
    np.testing.assert_array_equal(
        sent.vectors, FixedFleet(answers).train(None, tuple(answers), round=0).vectors
    )
