"""A ball around an intersection of balls contains it, and is never larger than the smallest of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedcrab.certificate.ball import Ball, intersection


def balls_around(seed: int, count: int, size: int) -> tuple[np.ndarray, list[Ball]]:
    """A point, and balls that contain it, some of them only just."""
    rng = np.random.default_rng(seed)
    point = rng.normal(size=size)
    centres = point + rng.normal(size=(count, size)) * rng.choice([1e-3, 1, 30], size=(count, 1))
    more = rng.choice([1.0, 1.0, 1.1, 3], size=count)
    return point, [Ball(c, float(np.linalg.norm(c - point)) * m) for c, m in zip(centres, more, strict=True)]


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 5))
def test_it_contains_every_point_of_all(seed: int, count: int, size: int) -> None:
    point, balls = balls_around(seed, count, size)
    found = intersection(balls)
    assert np.linalg.norm(found.centre - point) <= found.radius * (1 + 1e-9)
    assert found.radius <= min(ball.radius for ball in balls)


def test_by_hand() -> None:
    """Two unit balls at a distance of 1.6 share a lens of half-height 0.6."""
    left, right = Ball(np.array([-0.8, 0.0]), 1.0), Ball(np.array([0.8, 0.0]), 1.0)
    found = left.intersection(right)
    np.testing.assert_allclose([*found.centre, found.radius], [0, 0, 0.6], atol=1e-6)
    inside = Ball(np.array([0.1, 0.0]), 0.2)
    assert inside.intersection(Ball(np.zeros(2), 5.0)) is inside  # nothing is gained by a larger one
    apart = Ball(np.array([9.0, 0.0]), 1.0)
    assert left.intersection(apart) is left  # nothing in common: nothing follows
