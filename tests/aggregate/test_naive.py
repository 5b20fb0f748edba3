"""Rules against plain loops, and by hand: three clients, two parameters."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedcrab.aggregate import clipped_mean, fedavg, geometric_median, krum, median, multi_krum, trimmed_mean

THREE = np.array([[1, 10], [2, 40], [6, 10]], np.float32)
EQUAL = np.ones(3)
patient = settings(deadline=None)  # a slow machine is no failure


def matrices(least=1, most=9):
    shapes = st.tuples(st.integers(least, most), st.integers(1, 6))
    whole = st.integers(-100, 100).map(float)
    fine = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
    return shapes.flatmap(lambda shape: arrays(np.float32, shape, elements=whole | fine))


def equal_weights(matrix):
    return np.ones(len(matrix))


def naive_median(values):
    ordered, n = sorted(values), len(values)
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2


def naive_krum_scores(rows, byzantine):
    scores = []
    for i, row in enumerate(rows):
        distances = sorted(math.dist(row, other) ** 2 for j, other in enumerate(rows) if j != i)
        scores.append(sum(distances[: len(rows) - byzantine - 2]))
    return scores


@patient
@given(matrices())
def test_median_is_that_of_plain_loops(matrix):
    expected = [naive_median([float(v) for v in column]) for column in matrix.T]
    np.testing.assert_allclose(median()(matrix, equal_weights(matrix)), expected, rtol=1e-6, atol=1e-30)


@patient
@given(matrices(), st.integers(0, 4))
def test_trimmed_mean_is_that_of_plain_loops(matrix, trim):
    n = len(matrix)
    trim = min(trim, (n - 1) // 2)
    result = trimmed_mean(trim=trim)(matrix, equal_weights(matrix))
    kept = [sorted(map(float, column))[trim : n - trim] for column in matrix.T]
    np.testing.assert_allclose(result, [math.fsum(k) / len(k) for k in kept], rtol=1e-6, atol=1e-3)


@patient
@given(matrices(), st.integers(0, 4))
def test_trimmed_mean_is_that_of_scipy(matrix, trim):
    stats = pytest.importorskip("scipy.stats")
    n = len(matrix)
    trim = min(trim, (n - 1) // 2)
    theirs = stats.trim_mean(matrix.astype(np.float64), (trim + 0.5) / n, axis=0)
    result = trimmed_mean(trim=trim)(matrix, equal_weights(matrix))
    np.testing.assert_allclose(result, theirs, rtol=1e-6, atol=1e-3)


@patient
@given(matrices(least=3), st.integers(0, 3))
def test_krum_has_the_lowest_score_of_plain_loops(matrix, byzantine):
    byzantine = min(byzantine, (len(matrix) - 3) // 2)
    chosen = krum(byzantine=byzantine)(matrix, equal_weights(matrix))
    scores = naive_krum_scores(matrix.astype(np.float64).tolist(), byzantine)
    best = [s for row, s in zip(matrix, scores, strict=True) if np.array_equal(row, chosen)]
    assert best
    assert min(best) <= min(scores) * (1 + 1e-9) + 1e-9


@patient
@given(matrices(), st.randoms(use_true_random=False), st.integers(0, 3))
def test_krum_does_not_see_the_order_even_among_ties(matrix, random, byzantine):
    byzantine = min(byzantine, max(0, (len(matrix) - 3) // 2))
    order = list(range(len(matrix)))
    random.shuffle(order)
    rule = krum(byzantine=byzantine)
    np.testing.assert_array_equal(
        rule(matrix[order], equal_weights(matrix)), rule(matrix, equal_weights(matrix))
    )


@patient
@given(matrices(least=3))
def test_multi_krum_that_keeps_one_is_krum(matrix):
    weights = equal_weights(matrix)
    one = multi_krum(byzantine=0, keep=1)(matrix, weights)
    np.testing.assert_array_equal(one, krum(byzantine=0)(matrix, weights))


@patient
@given(matrices())
def test_multi_krum_that_keeps_all_and_a_limit_without_end_are_the_mean(matrix):
    weights = equal_weights(matrix)
    mean = fedavg()(matrix, weights)
    np.testing.assert_allclose(multi_krum(byzantine=0)(matrix, weights), mean, rtol=1e-6, atol=1e-2)
    np.testing.assert_array_equal(clipped_mean(limit=math.inf)(matrix, weights), mean)


def test_fedavg_by_hand():
    # weights 1, 1, 2: (1 + 2 + 12) / 4 and (10 + 40 + 20) / 4
    np.testing.assert_array_equal(fedavg()(THREE, np.array([1.0, 1.0, 2.0])), np.float32([3.75, 17.5]))


def test_median_and_trimmed_mean_by_hand():
    np.testing.assert_array_equal(median()(THREE, EQUAL), np.float32([2, 10]))
    np.testing.assert_array_equal(trimmed_mean(trim=1)(THREE, EQUAL), np.float32([2, 10]))
    np.testing.assert_array_equal(trimmed_mean(trim=0)(THREE, EQUAL), np.float32([3, 20]))


def test_krum_by_hand():
    # squared distances: 0-1 901, 0-2 25, 1-2 916; of one neighbour: 25, 901, 25; the tie goes to the smaller
    np.testing.assert_array_equal(krum(byzantine=0)(THREE, EQUAL), THREE[0])
    both = multi_krum(byzantine=0, keep=2)(THREE, EQUAL)
    np.testing.assert_array_equal(both, np.float32([3.5, 10]))


def test_clipped_mean_by_hand():
    # (3, 4) has length 5, cut to 2.5: (1.5, 2); (0, 1) and (0, 0) stay
    matrix = np.array([[3, 4], [0, 1], [0, 0]], np.float32)
    np.testing.assert_allclose(clipped_mean(limit=2.5)(matrix, EQUAL), [0.5, 1.0], rtol=1e-6)


def test_geometric_median_of_a_triangle_is_its_fermat_point():
    matrix = np.array([[0, 0], [1, 0], [0.5, math.sqrt(3) / 2]], np.float32)
    np.testing.assert_allclose(geometric_median()(matrix, EQUAL), [0.5, math.sqrt(3) / 6], atol=1e-6)


def test_geometric_median_goes_to_the_client_with_most_of_the_weight():
    result = geometric_median()(THREE, np.array([1.0, 1.0, 3.0]))
    np.testing.assert_allclose(result, THREE[2], atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_pulls_on_the_geometric_median_cancel(seed):
    rng = np.random.default_rng(seed)
    matrix, weights = rng.normal(size=(7, 20)).astype(np.float32), rng.uniform(1, 2, 7)
    away = matrix - geometric_median()(matrix, weights).astype(np.float64)
    pull = (weights[:, None] * away / np.linalg.norm(away, axis=1, keepdims=True)).sum(axis=0)
    assert np.linalg.norm(pull) < 1e-4 * weights.sum()


def test_geometric_median_leaves_a_client_that_the_mean_happens_to_hit():
    matrix = np.array([[0, 0], [3, 0], [12, 0]], np.float32)  # weighted 3, 1, 1: mean 3, median 0
    result = geometric_median()(matrix, np.array([3.0, 1.0, 1.0]))
    np.testing.assert_allclose(result, [0, 0], atol=1e-4)
