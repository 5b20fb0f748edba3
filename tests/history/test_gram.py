"""Norms of combinations from few numbers equal those from the vectors."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcrab.errors import DamagedError
from fedcrab.history.gram import FEWEST_DIGITS, LENGTH_ERROR, measure, measure_sketched, sketch_error
from fedcrab.history.number_planes import EXACT, decode, encode, rounded
from fedcrab.seeds import rng_for
from fedcrab.vectors import InMemory, distance


def points(seed: int, rows: int, size: int, kind: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(rows, size))
    if kind == "close":
        vectors = rng.normal(size=size) + 1e-6 * vectors
    if kind == "dependent":
        vectors[rows // 2 :] = vectors[0]
        vectors[-1] = 0
    if kind == "uneven":
        vectors *= 10.0 ** rng.integers(-12, 12, (rows, 1))
    return vectors.astype(np.float32)


@given(
    st.integers(0, 2**32),
    st.integers(1, 9),
    st.sampled_from([1, 3, 50, 5000]),
    st.sampled_from(["spread", "close", "dependent", "uneven"]),
    st.integers(0, 2),
)
def test_any_combination_has_the_length_that_the_vectors_give(
    seed: int, rows: int, size: int, kind: str, references: int
) -> None:
    vectors = points(seed, rows, size, kind)
    rng = np.random.default_rng(seed + 1)
    means = [rng.normal(size=size) for _ in range(references)]
    found = measure(vectors, vectors[0], [InMemory(m) for m in means], (slice(0, size),)).coordinates
    everything = np.vstack([vectors.astype(float), *means]) if means else vectors.astype(float)
    factors = rng.normal(size=len(everything))
    direct = np.linalg.norm(factors @ everything)
    scale = np.abs(factors) @ np.linalg.norm(everything, axis=1)
    ours = np.linalg.norm(found.combine(range(len(everything)), factors))
    assert ours == pytest.approx(direct, rel=LENGTH_ERROR, abs=1e-13 * scale)
    lengths = np.linalg.norm(everything, axis=1)
    assert (abs(found.gram() - everything @ everything.T) <= 1e-12 * np.outer(lengths, lengths)).all()


@given(st.integers(0, 2**32), st.integers(65, 90), st.sampled_from([90, 300]), st.floats(0, 8))
def test_rounding_changes_no_length_by_more_than_is_said(
    seed: int, rows: int, size: int, nearness: float
) -> None:
    """Also of the combination that is the hardest: along the least singular vector."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=size) + 10.0**-nearness * rng.normal(size=(rows, size))
    vectors = vectors.astype(np.float32)
    found = measure(vectors, vectors[0], [], (slice(0, size),)).coordinates
    exact = vectors.astype(float)
    unit = exact / np.linalg.norm(exact, axis=1)[:, None]
    least = np.linalg.svd(unit, full_matrices=False)[0][:, -1] / np.linalg.norm(exact, axis=1)
    for factors in (least, rng.normal(size=rows), rng.normal(size=rows) - 1 / rows):
        ours = np.linalg.norm(found.combine(range(rows), factors))
        direct, scale = np.linalg.norm(factors @ exact), np.abs(factors) @ np.linalg.norm(exact, axis=1)
        assert ours == pytest.approx(direct, rel=1.01 * LENGTH_ERROR, abs=1e-13 * scale)


def test_copies_have_one_row_and_cost_no_digits() -> None:
    rng = np.random.default_rng(3)
    vectors, trained = rng.normal(size=(80, 400)).astype(np.float32), (slice(0, 400),)
    vectors[4] = vectors[1]
    found = measure(vectors, vectors[0], [], trained).coordinates
    assert found.digits < EXACT
    assert found.digits == measure(np.delete(vectors, 4, axis=0), vectors[0], [], trained).coordinates.digits
    assert not found.combine([1, 4], [1.0, -1.0]).any()
    vectors[4, 0] = np.nextafter(vectors[4, 0], np.float32(9))
    assert measure(vectors, vectors[0], [], trained).coordinates.digits == EXACT


def test_rounds_of_few_clients_are_not_rounded() -> None:
    vectors = np.random.default_rng(4).normal(size=(20, 50)).astype(np.float32)
    found = measure(vectors, vectors[0], [], (slice(0, 50),)).coordinates
    assert found.digits == EXACT
    assert found.gram() == pytest.approx(
        vectors.astype(float) @ vectors.T.astype(float), rel=1e-12, abs=1e-12
    )


@given(
    st.lists(st.floats(-1e60, 1e60), max_size=40),
    st.integers(FEWEST_DIGITS, EXACT),
)
def test_numbers_come_back_from_their_planes(values: list[float], digits: int) -> None:
    numbers = rounded(np.array(values, np.float64), digits)
    assert np.array_equal(decode(encode(numbers, digits), len(numbers), digits), numbers)
    normal = np.abs(values) > 1e-300
    assert (np.abs(numbers - values)[normal] <= 2.0 ** (-digits - 1) * np.abs(values)[normal] * 1.0001).all()


@given(st.binary(max_size=80), st.integers(0, 5), st.integers(0, 60))
def test_planes_of_a_stranger_are_refused_in_a_sentence(content: bytes, count: int, digits: int) -> None:
    with suppress(DamagedError):
        decode(content, count, digits)


def test_norms_and_cosines_by_hand() -> None:
    vectors = np.array([[3, 4], [0, 0], [-4, 3]], np.float32)
    found = measure(vectors, np.array([3, 4], np.float32), [], (slice(0, 2),))
    assert found.norms.tolist() == [5, 0, 5]
    assert found.cosines.tolist() == [1, -1, 0]
    nothing = measure(vectors, np.zeros(2, np.float32), [], (slice(0, 2),))
    assert nothing.cosines.tolist() == [-1, -1, -1]


def test_buffers_are_no_part_of_any_norm() -> None:
    vectors = np.array([[3, 1e9, 4]], np.float32)
    found = measure(vectors, vectors[0], [], (slice(0, 1), slice(2, 3)))
    assert found.norms.tolist() == [5]
    assert found.cosines.tolist() == [1]


def test_sketches_keep_lengths_within_the_stated_error() -> None:
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(40, 3000)).astype(np.float32)
    ratios = []
    for t in range(60):
        found = measure_sketched(vectors, vectors[0], [], (slice(0, 3000),), size=128, seed=1, round=t)
        factors = rng.normal(size=40)
        length = np.linalg.norm(found.coordinates.combine(range(40), factors))
        ratios.append(length / np.linalg.norm(factors @ vectors.astype(float)))
    exact = measure(vectors, vectors[0], [], (slice(0, 3000),))
    assert found.norms.tolist() == pytest.approx(exact.norms.tolist(), rel=1e-12)
    assert np.mean(ratios) == pytest.approx(1, abs=4 * sketch_error(128) / np.sqrt(60))
    assert np.std(ratios) < 1.5 * sketch_error(128)


def test_a_sketch_is_the_sum_of_its_permuted_runs_with_signs() -> None:
    rng = np.random.default_rng(6)
    vectors, reference = rng.normal(size=(150, 900)).astype(np.float32), rng.normal(size=900)
    trained = (slice(0, 300), slice(310, 900))
    found = measure_sketched(vectors, vectors[0], [InMemory(reference)], trained, size=8, seed=1, round=2)
    draws, naive = rng_for(1, "sketch", 2), np.zeros((151, 8))
    rows = np.vstack([vectors.astype(float), reference])
    for run in (slice(a, min(a + 8, s.stop)) for s in trained for a in range(s.start, s.stop, 8)):
        signs, places = draws.choice([-1.0, 1.0], run.stop - run.start), draws.permutation(8)
        for column in range(run.stop - run.start):
            naive[:, places[column]] += signs[column] * rows[:, run.start + column]
    np.testing.assert_allclose(found.coordinates.rows(range(151)), naive, rtol=1e-6, atol=1e-6)
    exact = measure(vectors, vectors[0], [], trained)
    np.testing.assert_allclose(found.cosines, exact.cosines, atol=1e-12)


def test_a_distance_is_the_norm_of_the_difference_over_the_trained_coordinates() -> None:
    left, right = np.random.default_rng(3).normal(size=(2, 200_003)).astype(np.float32)
    trained = [slice(5, 70_000), slice(70_001, 200_000)]
    some = np.concatenate([(left - right)[part].astype(np.float64) for part in trained])
    assert distance(left, right, trained) == pytest.approx(np.linalg.norm(some), rel=1e-12)
    whole = np.linalg.norm((left - right).astype(np.float64))
    assert distance(left, right, []) == pytest.approx(whole, rel=1e-12)
