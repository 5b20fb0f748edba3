"""The compact product against the dense recursion, and where the estimate must be the Hessian itself."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcrab import ConfigError
from fedcrab.lbfgs import hessian_product


def dense(moved: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """The BFGS recursion from σI: B ← B - Bs·sᵀB / sᵀBs + y·yᵀ / yᵀs."""
    B = (changed[-1] @ moved[-1]) / (moved[-1] @ moved[-1]) * np.eye(moved.shape[1])
    for s, y in zip(moved, changed, strict=True):
        B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(y, y) / (y @ s)
    return B


def convex(rng: np.random.Generator, size: int) -> np.ndarray:
    """A positive definite matrix of moderate condition."""
    axes, _ = np.linalg.qr(rng.normal(size=(size, size)))
    return axes @ np.diag(rng.uniform(0.5, 5, size)) @ axes.T


def columns(moved: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """H̃ itself, column by column."""
    return np.array([hessian_product(moved, changed, e) for e in np.eye(moved.shape[1])]).T


def test_by_hand() -> None:
    """One pair s = (1, 1), y = (2, 0): σ = 1, and H̃ = σI + y·yᵀ/sᵀy - σ·s·sᵀ/sᵀs.

    That is I + (2, 0)(2, 0)ᵀ/2 - (1, 1)(1, 1)ᵀ/2 = [[2.5, -0.5], [-0.5, 0.5]].
    """
    found = columns(np.array([[1.0, 1]]), np.array([[2.0, 0]]))
    np.testing.assert_allclose(found, [[2.5, -0.5], [-0.5, 0.5]], rtol=1e-14)


@given(
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from([1.0, -1.0]),
    st.sampled_from([1e-12, 1e-4, 1.0, 1e8]),
)
def test_it_is_the_matrix_of_the_dense_recursion(seed, size, pairs, sign, scale) -> None:
    rng = np.random.default_rng(seed)
    moved = rng.normal(size=(pairs, size))
    changed = sign * moved @ convex(rng, size)
    lengths = scale ** rng.random((pairs, 1))  # each pair of another length: the estimate is the same
    expected = dense(moved, changed)
    found = columns(lengths * moved, lengths * changed)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@given(st.integers(0, 2**32), st.integers(1, 10))
def test_it_meets_the_newest_pair_whatever_the_pairs_are(seed, size) -> None:
    rng = np.random.default_rng(seed)
    moved, changed = rng.normal(size=(2, 3, size))
    found = hessian_product(moved, changed, moved[-1])
    if found is not None:  # of pairs that no Hessian gives, some determine nothing
        np.testing.assert_allclose(found, changed[-1], atol=1e-4 * np.abs(changed).max())


@given(st.integers(0, 2**32), st.integers(1, 10), st.sampled_from([1.0, -1.0]))
def test_it_is_exact_on_a_quadratic_once_conjugate_pairs_span_the_space(seed, size, sign) -> None:
    """BFGS keeps an earlier secant equation only if later steps are conjugate to it, as descent's are."""
    rng = np.random.default_rng(seed)
    hessian = convex(rng, size)
    directions = rng.normal(size=(size, size))
    for i in range(size):
        for earlier in directions[:i]:
            directions[i] -= (directions[i] @ hessian @ earlier) / (earlier @ hessian @ earlier) * earlier
    found = columns(directions, sign * directions @ hessian)
    np.testing.assert_allclose(found, sign * hessian, rtol=1e-6, atol=1e-6)


def test_it_is_exact_within_the_span_of_conjugate_pairs() -> None:
    rng = np.random.default_rng(1)
    hessian = convex(rng, 30)
    _, axes = np.linalg.eigh(hessian)
    v = axes[:, :4] @ rng.normal(size=4)
    found = hessian_product(axes[:, :4].T, axes[:, :4].T @ hessian, v)
    np.testing.assert_allclose(found, hessian @ v, rtol=1e-12)


@pytest.mark.parametrize(
    ("moved", "changed"),
    [
        ([[0, 0]], [[1, 1]]),  # no move
        ([[1, 0]], [[0, 0]]),  # no change: σ = 0
        ([[1, 0]], [[0, 1]]),  # a change across the move: σ = 0
        ([[1, 0], [0, 1]], [[0, 0], [0, 1]]),  # no change in an earlier pair
        ([[np.nan, 0]], [[1, 1]]),
    ],
)
def test_pairs_that_determine_no_matrix(moved, changed) -> None:
    assert hessian_product(np.array(moved, float), np.array(changed, float), np.array([1.0, 2])) is None


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ConfigError, match="one difference of gradients"):
        hessian_product(np.ones((2, 3)), np.ones((1, 3)), np.ones(3))
    with pytest.raises(ConfigError, match="at least one"):
        hessian_product(np.ones((0, 3)), np.ones((0, 3)), np.ones(3))
    with pytest.raises(ConfigError, match=r"\(4,\)"):
        hessian_product(np.ones((1, 3)), np.ones((1, 3)), np.ones(4))


def test_float32_rows_of_a_million_numbers_take_one_vector_more() -> None:
    rng = np.random.default_rng(0)
    moved = [rng.normal(size=10**6).astype(np.float32) for _ in range(2)]
    changed = [np.float32(-0.5) * row for row in moved]
    tracemalloc.start()
    found = hessian_product(moved, changed, moved[0] + moved[1])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8e6 + 6e6  # the product, the vector asked for, some blocks
    np.testing.assert_allclose(found, -0.5 * (moved[0] + moved[1]), rtol=1e-4, atol=1e-6)
