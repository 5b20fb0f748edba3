"""Balls, and a ball that contains the intersection of several balls.

For every 0 ≤ λ ≤ 1, the intersection of the balls (c₁, r₁) and (c₂, r₂) is in the ball with
c = (1-λ)·c₁ + λ·c₂ and

    r² = (1-λ)·r₁² + λ·r₂² - λ·(1-λ)·‖c₁ - c₂‖²

Proof: (1-λ)‖z - c₁‖² + λ‖z - c₂‖² = ‖z - c‖² + λ(1-λ)‖c₁ - c₂‖². The smallest r has
λ = ½ + (r₁² - r₂²)/(2‖c₁ - c₂‖²), if that is between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from fedcrab.vectors import Matrix64

ROUNDING = 2.0**-46  # of the sum of squares, far above the rounding error of float64
PASSES = 3  # over the balls; a smaller ball can become smaller again with the earlier ones


@dataclass(frozen=True, eq=False)
class Ball:
    """All models within a radius of a centre."""

    centre: Matrix64  # trained numbers only
    radius: float

    def reach(self, other: Matrix64) -> float:
        """Return the largest distance from this model to a model in the ball."""
        return float(np.linalg.norm(self.centre - other)) + self.radius

    def intersection(self, other: Ball) -> Ball:
        """Return a ball that contains the intersection of both; this ball if that is not smaller."""
        between = other.centre - self.centre
        distance, own, others = float(between @ between), self.radius**2, other.radius**2  # squares
        share = 0.5 + (own - others) / (2 * distance) if distance > 0 else 0.0
        if not 0 < share < 1:
            return self
        square = (1 - share) * own + share * others - share * (1 - share) * distance
        radius = sqrt(max(square, 0.0) + ROUNDING * (own + others + distance))
        # square < 0: the intersection is empty, so the constants are contradictory; keep this ball.
        return Ball(self.centre + share * between, radius) if square >= 0 and radius < self.radius else self


def intersection(balls: Sequence[Ball]) -> Ball:
    """Return a ball that contains the intersection of all, never larger than the smallest of them."""
    smallest = min(balls, key=lambda ball: ball.radius)
    for _ in range(PASSES):
        before = smallest.radius
        for ball in balls:
            smallest = smallest.intersection(ball)
        if smallest.radius > 0.99 * before:
            break
    return smallest
