"""Balls, and a ball around what several of them have in common.

A point z in the balls (c₁, r₁) and (c₂, r₂) lies, for every 0 ≤ λ ≤ 1, in the ball around
c = (1-λ)·c₁ + λ·c₂ with

    r² = (1-λ)·r₁² + λ·r₂² - λ·(1-λ)·‖c₁ - c₂‖²

Proof: (1-λ)‖z - c₁‖² + λ‖z - c₂‖² = ‖z - c‖² + λ(1-λ)‖c₁ - c₂‖². The least r is at
λ = ½ + (r₁² - r₂²)/(2‖c₁ - c₂‖²), where that is between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from fedcrab.vectors import Matrix64

ROUNDING = 2.0**-46  # of all squares that are added up, far above what float64 loses
PASSES = 3  # over the balls, since a smaller ball can be met again by the earlier ones


@dataclass(frozen=True, eq=False)
class Ball:
    """All models within a radius of a centre."""

    centre: Matrix64  # the trained numbers alone
    radius: float

    def reach(self, other: Matrix64) -> float:
        """The largest distance of a model from a model in the ball."""
        return float(np.linalg.norm(self.centre - other)) + self.radius

    def met(self, other: Ball) -> Ball:
        """A ball that contains what both have in common; this one, where that is not smaller."""
        between = other.centre - self.centre
        apart, ours, theirs = float(between @ between), self.radius**2, other.radius**2
        share = 0.5 + (ours - theirs) / (2 * apart) if apart > 0 else 0.0
        if not 0 < share < 1:
            return self
        square = (1 - share) * ours + share * theirs - share * (1 - share) * apart
        radius = sqrt(max(square, 0.0) + ROUNDING * (ours + theirs + apart))
        # Balls that do not meet, square < 0, contradict the constants: nothing is made of that.
        return Ball(self.centre + share * between, radius) if square >= 0 and radius < self.radius else self


def in_all(balls: Sequence[Ball]) -> Ball:
    """A ball that contains what all of these have in common, never larger than the smallest of them."""
    least = min(balls, key=lambda ball: ball.radius)
    for _ in range(PASSES):
        before = least.radius
        for ball in balls:
            least = least.met(ball)
        if least.radius > 0.99 * before:
            break
    return least
