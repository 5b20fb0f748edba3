"""The estimate of a correction against a naive version, and what it never does."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedcrab.recover.estimate import estimated_correction
from fedcrab.recover.step import Pair
from recover.naive_estimate import naive_estimate

HANDMADE = (((2, 0, 3), (-1, 0, 0)), ((0, 2, 5), (0, -1, 0)))  # v and c
SIZE = 6
PULL = np.array([[-0.5, 0.2, 0, 0, 0, 0], [-0.1, -0.6, 0, 0, 0, 0]] + [[0] * 6] * 4, np.float32)
PULL[range(2, 6), range(2, 6)] = (-0.3, -0.2, -0.1, 0)  # the last number is never corrected
rows = arrays(np.float32, SIZE, elements=st.floats(-4, 4, width=16))


def pairs_of(*both: tuple) -> list[Pair]:
    return [Pair(t, np.array(v, np.float32), np.array(c, np.float32)) for t, (v, c) in enumerate(both)]


def estimate(pairs: list[Pair], v: np.ndarray, mean: object = (99.0,) * SIZE) -> np.ndarray | None:
    return estimated_correction(pairs, np.array(v, np.float32), float(np.linalg.norm(mean)))


def measured(places: list[np.ndarray]) -> list[Pair]:
    """Contacts at these v, far enough from each other for a Hessian."""
    long = [v for v in places if np.linalg.norm(v) > 0.5 and v @ PULL @ v < -0.01]
    assume(long and np.linalg.cond(np.array([v / np.linalg.norm(v) for v in long]).T) < 50)
    return pairs_of(*((v, PULL @ v) for v in long))


@given(st.lists(rows, min_size=1, max_size=3), rows, st.sampled_from([99.0, 0.1]))
def test_it_is_the_naive_one(places: list[np.ndarray], v: np.ndarray, length: float) -> None:
    pairs, mean = measured(places), np.full(SIZE, length, np.float32)
    assume(np.linalg.norm(v) > 0.1)
    expected = naive_estimate([(p.moved.astype(float), p.changed.astype(float)) for p in pairs], v, mean)
    np.testing.assert_allclose(estimate(pairs, v, mean), expected, rtol=1e-3, atol=1e-4)


@given(st.lists(rows, min_size=1, max_size=3), rows)
def test_it_stays_within_what_was_measured(places: list[np.ndarray], v: np.ndarray) -> None:
    """Never longer than v or the stored step, and in each number never a larger share than at a contact."""
    pairs = measured(places)
    found = estimate(pairs, v, mean := (0.3,) * SIZE)
    if found is None:
        return
    assert np.linalg.norm(found) <= 1.0001 * min(np.linalg.norm(v), np.linalg.norm(mean))
    assert found[5] == 0
    for i in range(SIZE):
        shares = [0.0, *(p.changed[i] / p.moved[i] for p in pairs if p.moved[i])]
        ends = sorted((min(shares) * v[i], max(shares) * v[i]))
        assert ends[0] - 1e-4 <= found[i] <= ends[1] + 1e-4


def test_it_repeats_what_a_contact_measured() -> None:
    """At the newest pair's own v, L-BFGS gives its c exactly, and least squares nearly."""
    pairs = pairs_of(*((v, PULL @ v) for v in np.eye(SIZE, dtype=np.float32)[:3]))
    np.testing.assert_allclose(estimate(pairs, pairs[-1].moved), pairs[-1].changed, rtol=0.02, atol=0.01)


def test_nothing_is_estimated_where_no_correction_was_measured() -> None:
    """The attackers moved the third number, which honest clients never touch."""
    found = estimate(pairs_of(*HANDMADE), np.array([1, 2, 4]), (9, 9, 0))
    assert found is not None
    assert found[:2].all()
    assert found[2] == 0


def test_little_is_estimated_where_corrections_were_small() -> None:
    """A trigger's pixel: far away from the history's value, hardly ever corrected by honest clients."""
    pairs = pairs_of(((1, 0, 9), (-0.5, 0, -0.009)), ((0, 1, 9), (0, -0.5, -0.018)))
    found = estimate(pairs, np.array([1, 1, 9]), (9, 9, 9))
    assert found is not None
    assert found[0] < -0.1 > found[1]
    assert -0.018 <= found[2] <= 0


def test_it_never_drives_the_models_apart() -> None:
    """A pair that points away from the history's model is noise; what is left is as long as v at most."""
    east, north = np.array([1, 0], np.float32), np.array([0, 1], np.float32)
    outward, inward = Pair(1, east, 3 * east), Pair(2, north, -2 * north)
    assert estimate([], east, (9, 9)) is None
    assert estimate([outward], east, (9, 9)) is None
    for pairs in ([inward], [outward, inward]):
        np.testing.assert_allclose(estimate(pairs, 0.5 * north, (9, 9)), -0.5 * north, atol=1e-6)


@pytest.mark.parametrize("copies", [2, 3])
def test_pairs_that_are_too_alike_count_once(copies: int) -> None:
    """Their L-BFGS system is singular; the newest pair alone gives one."""
    pair = ((1, 2, 0), (-0.5, -0.2, 0))
    one, several = (estimate(pairs_of(*[pair] * n), np.array([1, 1, 1]), (9, 9, 9)) for n in (1, copies))
    np.testing.assert_allclose(several, one, rtol=0.02)
