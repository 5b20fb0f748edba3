"""Min-max: no further from any honest update than the honest updates are from each other.

    sends μ + γ·p,   p ∈ {−μ/‖μ‖, −σ, −sign μ}
    the largest γ with  max_i ‖μ + γp − u_i‖ ≤ max_{i,j} ‖u_i − u_j‖

μ, σ the coordinate-wise mean and deviation of the honest updates u_i. Squared, the constraint of one i is
‖p‖²γ² + 2⟨p, μ − u_i⟩γ + ‖μ − u_i‖² − R ≤ 0, R the largest squared distance; γ is the smallest of the upper
roots.
Shejwalkar, Houmansadr, "Manipulating the Byzantine", NDSS 2021 (AGR-agnostic).
In a round without honest clients the attackers' own updates are used instead; with one, γ = 0.

Min-sum: no larger a sum of squared distances to the honest updates than any honest update has.

    sends μ + γ·p,   p ∈ {−μ/‖μ‖, −σ, −sign μ}
    the largest γ with  Σ_i ‖μ + γp − u_i‖² ≤ max_i Σ_j ‖u_i − u_j‖²

μ, σ the coordinate-wise mean and deviation of the h honest updates u_i. As Σ (μ − u_i) = 0, the left side is
h·‖p‖²γ² + Σ ‖μ − u_i‖², so γ = √((R − Σ ‖μ − u_i‖²) / (h·‖p‖²)), R the right side.
Shejwalkar, Houmansadr, "Manipulating the Byzantine", NDSS 2021 (AGR-agnostic).
In a round without honest clients the attackers' own updates are used instead; with one, γ = 0.

What min-max and min-sum share: μ + γ·p, away from the mean as far as a constraint allows.

Shejwalkar, Houmansadr, "Manipulating the Byzantine", NDSS 2021.
Departs from it: the paper bisects γ from 10 down to steps of 1e-5; both constraints are quadratic in γ, so
the largest γ is a root, exact at any scale of the updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.malicious_fleet import Attackers, CraftedFleet, RoundView, deviation, mean
from fedcrab.errors import ConfigError
from fedcrab.types import Fleet, Updates
from fedcrab.vectors import squared_distances

Direction = Literal["unit", "deviation", "sign"]
Largest = Callable[[Updates, NDArray[np.float64], NDArray[np.float64]], float]
"""(honest updates, μ, p) -> the largest γ."""


def perturbed(fleet: Fleet, attackers: Attackers, direction: Direction, largest: Largest) -> CraftedFleet:
    """Return a fleet whose attackers send μ + γ·p; where p is zero there is nowhere to go: μ."""
    if direction not in get_args(Direction):
        raise ConfigError(f"direction must be one of {', '.join(get_args(Direction))}, got {direction!r}")

    def craft(scene: RoundView) -> NDArray[np.float64]:
        centre = mean(scene.seen)
        p = away(scene.seen, centre, direction)
        return centre + largest(scene.seen, centre, p) * p if p.any() else centre

    return CraftedFleet(fleet, attackers, craft)


def away(updates: Updates, centre: NDArray[np.float64], direction: Direction) -> NDArray[np.float64]:
    """p: −μ/‖μ‖ (`unit`), −σ (`deviation`) or −sign μ (`sign`)."""
    if direction == "deviation":
        return -deviation(updates)
    if direction == "sign":
        return -np.sign(centre)
    return -centre / max(float(np.linalg.norm(centre)), np.finfo(np.float64).tiny)


def gaps(
    updates: Updates, centre: NDArray[np.float64], p: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """⟨p, μ − u_i⟩ and ‖μ − u_i‖² for each i."""
    rows = [(p @ (centre - row), (centre - row) @ (centre - row)) for row in updates.vectors]
    return np.array([r[0] for r in rows]), np.array([r[1] for r in rows])


def min_max(fleet: Fleet, attackers: Attackers, *, direction: Direction = "deviation") -> CraftedFleet:
    """Return a fleet whose attackers stay within the largest honest distance."""
    return perturbed(fleet, attackers, direction, largest_by_distance)


def largest_by_distance(updates: Updates, centre: NDArray[np.float64], p: NDArray[np.float64]) -> float:
    """The largest γ that keeps every distance within the largest honest one."""
    b, c = gaps(updates, centre, p)
    a, c = float(p @ p), np.minimum(c - squared_distances(updates.vectors).max(), 0.0)
    root = np.sqrt(b**2 - a * c)
    with np.errstate(divide="ignore", invalid="ignore"):  # where b ≤ 0, in the form that is not taken
        return float(np.min(np.where(b > 0, -c / (b + root), (root - b) / a)))


def min_sum(fleet: Fleet, attackers: Attackers, *, direction: Direction = "deviation") -> CraftedFleet:
    """Return a fleet whose attackers stay within the largest honest sum of squared distances."""
    return perturbed(fleet, attackers, direction, largest_by_sum)


def largest_by_sum(updates: Updates, centre: NDArray[np.float64], p: NDArray[np.float64]) -> float:
    """The largest γ that keeps the sum within the largest honest one."""
    spare = squared_distances(updates.vectors).sum(axis=1).max() - gaps(updates, centre, p)[1].sum()
    return float(np.sqrt(max(spare, 0.0) / (len(updates.vectors) * (p @ p))))
