"""The laws of every aggregation rule."""

import tracemalloc

import numpy as np
import pytest

from fedcrab.aggregate import clipped_mean, fedavg, geometric_median, krum, median, multi_krum, trimmed_mean
from fedcrab.errors import ConfigError

RULES = {
    "fedavg": fedavg(),
    "median": median(),
    "trimmed_mean": trimmed_mean(trim=2),
    "krum": krum(byzantine=2),
    "multi_krum": multi_krum(byzantine=2, keep=4),
    "multi_krum, all but byzantine": multi_krum(byzantine=2),
    "geometric_median": geometric_median(),
    "clipped_mean": clipped_mean(limit=1.5),
}
ALONE = {  # the rule that one client is enough for
    **RULES,
    "trimmed_mean": trimmed_mean(trim=0),
    "krum": krum(byzantine=0),
    "multi_krum": multi_krum(byzantine=0, keep=1),
    "multi_krum, all but byzantine": multi_krum(byzantine=0),
    "clipped_mean": clipped_mean(limit=1e6),
}
WEIGHTED = {"fedavg", "geometric_median", "clipped_mean"}
ROBUST = set(RULES) - {"fedavg"}


def round_of(n=9, d=50, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(1.0, 0.3, (n, d)).astype(np.float32), rng.integers(1, 100, n).astype(np.float64)


@pytest.fixture(params=RULES)
def name(request):
    return request.param


def test_gives_one_float32_vector_and_changes_nothing(name):
    matrix, weights = round_of()
    before = matrix.copy(), weights.copy()
    result = RULES[name](matrix, weights)
    assert result.shape == (50,)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(matrix, before[0])
    np.testing.assert_array_equal(weights, before[1])
    assert not np.shares_memory(result, matrix)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_clients_does_not_matter(name, seed):
    matrix, weights = round_of(seed=seed)
    order = np.random.default_rng(seed).permutation(len(matrix))
    np.testing.assert_allclose(
        RULES[name](matrix[order], weights[order]), RULES[name](matrix, weights), rtol=1e-6, atol=1e-6
    )


def test_one_client_is_the_identity(name):
    matrix, weights = round_of(n=1)
    np.testing.assert_array_equal(ALONE[name](matrix, weights), matrix[0])


def test_equal_updates_give_that_update(name):
    matrix = np.repeat(round_of(n=1)[0] / 10, 9, axis=0)
    np.testing.assert_allclose(RULES[name](matrix, np.arange(1.0, 10.0)), matrix[0], rtol=1e-6)


def test_weights_count_in_a_mean_and_nowhere_else(name):
    matrix, weights = round_of()
    equal, skewed = RULES[name](matrix, np.ones(9)), RULES[name](matrix, weights)
    assert np.allclose(equal, skewed, atol=1e-6) == (name not in WEIGHTED)


@pytest.mark.parametrize("factor", [1e-3, 7.0])
def test_only_the_shares_of_the_weights_count(name, factor):
    matrix, weights = round_of()
    np.testing.assert_allclose(
        RULES[name](matrix, weights * factor), RULES[name](matrix, weights), rtol=1e-5, atol=1e-6
    )


def test_two_outliers_of_nine_do_not_carry_a_robust_rule_away(name):
    matrix, weights = round_of()[0], np.ones(9)
    honest = matrix[:7].mean(axis=0)
    matrix[7:] = -1000.0
    distance = np.linalg.norm(RULES[name](matrix, weights) - honest)
    limit = np.linalg.norm(honest) * 1.3  # clipping keeps lengths bounded, not directions
    assert (distance < limit) == (name in ROBUST)


def test_a_matrix_wider_than_one_stretch_is_aggregated_whole(name, monkeypatch):
    matrix, weights = round_of(d=101)
    whole = RULES[name](matrix, weights)
    monkeypatch.setattr("fedcrab.vectors.STRETCH", 9 * 7)
    np.testing.assert_allclose(RULES[name](matrix, weights), whole, rtol=1e-6)


def test_no_float64_copy_of_the_updates_is_made(name):
    matrix, weights = round_of(d=200_000)
    tracemalloc.start()
    RULES[name](matrix, weights)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < matrix.nbytes  # a float64 copy would be twice that


def test_no_update_is_refused(name):
    with pytest.raises(ConfigError, match="at least one update, got none"):
        RULES[name](np.zeros((0, 3), np.float32), np.zeros(0))


def test_shapes_that_do_not_fit_are_refused_with_both(name):
    with pytest.raises(ConfigError, match=r"\(2, 3\), weights of shape \(3,\)"):
        RULES[name](np.zeros((2, 3), np.float32), np.ones(3))


@pytest.mark.parametrize("weighted", sorted(WEIGHTED))
@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -1.0], [1.0, np.nan], [1.0, np.inf]])
def test_weights_that_are_no_weights_are_refused(weighted, weights):
    with pytest.raises(ConfigError, match="weights must be"):
        RULES[weighted](np.zeros((2, 3), np.float32), np.array(weights))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: trimmed_mean(trim=-1), "trim must be 0 or more, got -1"),
        (lambda: krum(byzantine=-1), "byzantine must be 0 or more, got -1"),
        (lambda: multi_krum(byzantine=-2), "byzantine must be 0 or more, got -2"),
        (lambda: multi_krum(byzantine=0, keep=0), "keep must be 1 or more.*got 0"),
        (lambda: geometric_median(smoothing=0.0), r"smoothing must be more than 0, got 0\.0"),
        (lambda: geometric_median(iterations=0), "iterations must be 1 or more, got 0"),
        (lambda: geometric_median(tolerance=float("nan")), "tolerance must be 0 or more, got nan"),
        (lambda: clipped_mean(limit=0.0), r"limit must be more than 0, got 0\.0"),
    ],
)
def test_settings_are_checked_where_they_enter(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("rule", "n", "message"),
    [
        (trimmed_mean(trim=2), 4, r"Cannot trim 2\*trim >= n\. Got trim=2, n=4"),
        (krum(byzantine=1), 4, r"Cannot tolerate 2\*byzantine \+ 2 >= n\. Got byzantine=1, n=4"),
        (multi_krum(byzantine=1, keep=5), 5, r"Cannot keep \+ byzantine > n\. Got keep=5, byzantine=1, n=5"),
    ],
)
def test_too_few_clients_are_refused_with_both_numbers(rule, n, message):
    with pytest.raises(ConfigError, match=message):
        rule(*round_of(n=n))
