"""Min-max and min-sum go exactly as far as their constraints let them."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attack.tiny import FixedFleet
from fedcrab.attack import Attackers, min_max, min_sum
from fedcrab.attack.malicious_fleet import mean
from fedcrab.attack.min_max import away
from fedcrab.attack.min_max import largest_by_distance as largest_of_max
from fedcrab.attack.min_max import largest_by_sum as largest_of_sum
from fedcrab.types import Updates


def pairs(vectors):
    return np.linalg.norm(vectors[:, None].astype(np.float64) - vectors[None], axis=2)


def max_holds(vectors, point, slack=0.0):
    return np.linalg.norm(vectors - point, axis=1).max() <= pairs(vectors).max() * (1 + slack)


def sum_holds(vectors, point, slack=0.0):
    return ((vectors - point) ** 2).sum() <= (pairs(vectors) ** 2).sum(axis=1).max() * (1 + slack)


KINDS = {"min_max": (min_max, largest_of_max, max_holds), "min_sum": (min_sum, largest_of_sum, sum_holds)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["unit", "deviation", "sign"])
@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 12),
    d=st.integers(1, 8),
    scale=st.sampled_from([1e-4, 1, 1e4]),
)
def test_the_constraint_holds_at_gamma_and_not_beyond(kind, direction, seed, n, d, scale):
    _, largest, holds = KINDS[kind]
    vectors = np.random.default_rng(seed).normal(0.3, 1, (n, d)).astype(np.float32) * np.float32(scale)
    updates = Updates(tuple(f"{i:02}" for i in range(n)), vectors, np.ones(n))
    centre = mean(updates)
    p = away(updates, centre, direction)
    assume(np.linalg.norm(p) > 1e-6 * scale)
    gamma = largest(updates, centre, p)
    assert gamma >= 0
    assert holds(vectors, centre + gamma * p, slack=1e-9)
    for beyond in (1.001, 2.0, 100.0):
        assert not holds(vectors, centre + (gamma * beyond + 1e-4 * scale / np.linalg.norm(p)) * p)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_keeps_the_constraint(kind):
    attack, _, holds = KINDS[kind]
    vectors = np.random.default_rng(3).normal(0.1, 1, (8, 200)).astype(np.float32)
    fleet = attack(FixedFleet({str(i): (v, 1) for i, v in enumerate(vectors)}), Attackers(frozenset("67")))
    sent = fleet.train(np.zeros(200, np.float32), [str(i) for i in range(8)], round=0).vectors
    np.testing.assert_array_equal(sent[6], sent[7])
    assert holds(vectors[:6], sent[6], slack=1e-6)
    assert not holds(vectors[:6], sent[6], slack=-1e-3)
