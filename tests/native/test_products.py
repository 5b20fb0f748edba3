"""The kernels that read stored updates and combine them do what numpy does."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcrab import Field, Layout
from fedcrab.history.compact import Packing
from fedcrab.seeds import rng_for
from fedcrab.vectors import add_weighted, combination, dot, norm, products, squared_norms, weighted_sum
from native.levels import LIBRARIES, each_level, kernels

sizes = st.sampled_from([1, 3, 8, 1023, 1025, 2048, 2049, 5000])
seeds = st.integers(0, 999)


def rows_of(seed: int, count: int, size: int) -> list[np.ndarray]:
    """Float32 rows of different magnitudes, each in memory of its own."""
    rng = rng_for(seed, "rows")
    return [(rng.normal(size=size) * 10.0 ** rng.integers(-5, 6)).astype(np.float32) for _ in range(count)]


@each_level
@pytest.mark.parametrize("bits", [2, 4, 8])
@given(seeds, st.integers(1, 1100), st.integers(1, 4), st.sampled_from([1e-40, 1e-30, 1.0, 1e37, 3e38]))
def test_unpacked_rows_have_the_same_bits(
    level: str, bits: int, seed: int, size: int, count: int, scale: float
) -> None:
    drawn = rng_for(seed, "rows").uniform(-1, 1, size=(count, size)) * scale
    fields = (Field("a", (size,)), Field("steps", (3,), trained=False), Field("b", (30,)))
    for layout in (Layout.flat(size), Layout(fields)):
        wide = np.zeros((count, layout.size))
        wide[:, :size] = drawn
        wide[:, size:] = scale / 2
        packing, found = Packing(layout, bits), {}
        packed = packing.pack(wide.astype(np.float32))
        for used in (level, "none"):
            with kernels(used):
                found[used] = packing.unpack(packed)
                one = packing.unpack(packed[::-1][:1])
                assert one.tobytes() == found[used][-1:].tobytes()
        assert found[level].tobytes() == found["none"].tobytes()
        assert np.isfinite(found[level]).all()


@each_level
@given(seeds, st.integers(1, 7), st.integers(1, 7), sizes)
def test_products_are_those_of_exact_arithmetic(
    level: str, seed: int, lefts: int, rights: int, size: int
) -> None:
    left, right = rows_of(seed, lefts, size), rows_of(seed + 1, rights, size)
    exact = np.array(left, np.float64) @ np.array(right, np.float64).T
    room = 1e-13 * np.outer([np.linalg.norm(r) for r in left], [np.linalg.norm(r) for r in right])
    for used in (level, "none"):
        with kernels(used):
            assert (np.abs(products(left, right) - exact) <= room).all()
            assert dot(left[0], right[0]) == products(left[:1], right[:1])[0, 0]
    with kernels(level):
        np.testing.assert_array_equal(products(left, left), products(left, left).T)


@given(seeds, st.integers(1, 7), sizes)
def test_every_level_adds_in_the_same_order(seed: int, count: int, size: int) -> None:
    rows, found = rows_of(seed, count, size), []
    for level in LIBRARIES:
        with kernels(level):
            found.append((products(rows[:3], rows).tobytes(), squared_norms(np.array(rows)).tobytes()))
    assert len({*found}) <= 1


@each_level
@given(seeds, st.integers(1, 5), sizes)
def test_lengths_are_over_the_trained_numbers(level: str, seed: int, count: int, size: int) -> None:
    matrix = np.array(rows_of(seed, count, size))
    trained = (slice(0, size // 2), slice(size // 2 + 1, size)) if size > 2 else (slice(0, size),)
    wanted = [sum(float(np.dot(*[row[p].astype(np.float64)] * 2)) for p in trained) for row in matrix]
    for used in (level, "none"):
        with kernels(used):
            np.testing.assert_allclose(squared_norms(matrix, trained), wanted, rtol=1e-12)
            np.testing.assert_allclose(squared_norms(np.asfortranarray(matrix), trained), wanted, rtol=1e-12)
            assert norm(matrix[0], trained) == pytest.approx(wanted[0] ** 0.5, rel=1e-12)
            assert norm(matrix[0].astype(np.float64), trained) == pytest.approx(wanted[0] ** 0.5, rel=1e-12)


@each_level
@given(seeds, st.integers(1, 11), sizes.filter(lambda size: size > 1))
def test_sums_have_the_same_bits(level: str, seed: int, count: int, size: int) -> None:
    rows, factors = rows_of(seed, count, size), rng_for(seed, "factors").normal(size=count)
    start, found = rows_of(seed + 1, 1, size)[0], {}
    for used in (level, "none"):
        with kernels(used):
            out = np.empty(size, np.float32)
            assert add_weighted(start, factors, rows, out, most=1e30)
            total = weighted_sum(factors, rows)
            found[used] = [x.tobytes() for x in (out, total, combination(factors, np.array(rows)))]
    assert found[level] == found["none"]
    exact = sum(Fraction(float(f)) * Fraction(float(row[-1])) for f, row in zip(factors, rows, strict=True))
    room = 1e-14 * sum(abs(float(f) * float(row[-1])) for f, row in zip(factors, rows, strict=True))
    assert total[-1] == pytest.approx(float(exact), abs=room)


@each_level
@pytest.mark.parametrize("bad", [1.001, -1.001, np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1023, 1500, 2999])
def test_a_sum_beyond_the_bound_is_refused(level: str, bad: float, place: int) -> None:
    start, row = np.full(3000, 0.5, np.float32), np.full(3000, 0.25, np.float32)
    for used in (level, "none"):
        with kernels(used):
            out = np.empty_like(start)
            assert add_weighted(start, np.array([2.0]), [row], out, most=1.0)
            assert (out == 1).all()
            start[place] = bad - 0.5
            assert not add_weighted(start, np.array([2.0]), [row], out, most=1.0)
            start[place] = 0.5


@each_level
def test_factors_may_lie_apart_in_memory(level: str) -> None:
    rng = rng_for(0, "apart")
    rows, table = rng.normal(size=(9, 300)).astype(np.float32), rng.normal(size=(9, 50))
    start, found = rows[0].copy(), []
    for factors in (table[:, 7].copy(), table[:, 7]):
        with kernels(level):
            out = np.empty_like(start)
            assert add_weighted(start, factors, rows, out, most=1e30)
            found.append((weighted_sum(factors, rows).tobytes(), out.tobytes()))
    assert found[0] == found[1]
