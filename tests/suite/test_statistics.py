"""Mean, spread and paired tests against numbers computed by hand."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcrab.experiment.suite_tables import holm, mean_and_deviation, p_value, paired


def test_spread_by_hand() -> None:
    told = mean_and_deviation([2.0, 4.0, 9.0])
    assert told is not None
    assert (told.mean, told.count) == (5.0, 3)
    assert told.deviation == pytest.approx(math.sqrt((9 + 1 + 16) / 2))
    assert mean_and_deviation([]) is None
    one = mean_and_deviation([1.5])
    assert one is not None
    assert one.deviation is None


def test_p_of_two_degrees_of_freedom_by_hand() -> None:
    """With two degrees of freedom the distribution is t / √(2 + t²): P(|T| > t) = 1 − t / √(2 + t²)."""
    differences = [1.0, 2.0, 4.5]  # mean 2.5, deviation √(2.25 + 0.25 + 4)/√2 = √3.25
    t = 2.5 / math.sqrt(3.25 / 3)
    assert p_value(differences) == pytest.approx(1 - t / math.sqrt(2 + t * t))


def test_the_critical_value_for_three_seeds() -> None:
    """t = 4.303 is where p = 0.05: a mean of 4.303/√3 deviations."""
    centre = 4.302652729911275 / math.sqrt(3)
    assert p_value([centre - 1, centre, centre + 1]) == pytest.approx(0.05)


def test_pairs_are_made_by_seed_and_only_of_seeds_that_both_have() -> None:
    told = paired({0: 5.0, 1: 7.0, 2: 1.0, 9: 99.0}, {2: 0.0, 1: 4.0, 0: 3.0, 8: -99.0})
    assert told is not None
    assert (told.mean, told.count) == (2.0, 3)
    assert told.p == p_value([2.0, 3.0, 1.0])
    assert paired({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize("differences", [[], [1.0], [1.0, 2.0], [3.0, 3.0, 3.0], [0.0, 0.0, 0.0]])
def test_what_cannot_be_told_is_not_told(differences: list[float]) -> None:
    assert p_value(differences) is None


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.02, 0.03, 0.5: times 4, 3, 2, 1 and never falling."""
    corrected = holm({"a": 0.03, "b": 0.01, "c": 0.5, "d": 0.02})
    assert corrected == pytest.approx({"b": 0.04, "d": 0.06, "a": 0.06, "c": 0.5})


@given(st.dictionaries(st.integers(), st.floats(0, 1), max_size=8))
def test_holm_only_ever_raises_and_keeps_the_order(p_values: dict[int, float]) -> None:
    corrected = holm(p_values)
    assert corrected.keys() == p_values.keys()
    assert all(p_values[name] <= corrected[name] <= 1 for name in p_values)
    ordered = sorted(p_values, key=lambda name: p_values[name])
    assert all(corrected[a] <= corrected[b] for a, b in pairwise(ordered))
