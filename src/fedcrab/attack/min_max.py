"""Min-max and min-sum: move away from the honest mean as far as a limit on distances allows.

    an attacker sends μ + γ·p,   p ∈ {−μ/‖μ‖, −σ, −sign μ},   with the largest γ that the limit allows

μ and σ are the coordinate-wise mean and deviation of the honest updates u_i. In a round without honest
clients the attackers use their own updates instead; with only one of them, γ = 0.

Shejwalkar, Houmansadr, "Manipulating the Byzantine", NDSS 2021 (AGR-agnostic). Departs from it: the paper
bisects γ from 10 down to steps of 1e-5. Both limits are quadratic in γ, so here the largest γ is a root,
which is exact at any scale of the updates.
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
"""(honest updates, μ, p) -> the largest allowed γ."""


def perturbed(fleet: Fleet, attackers: Attackers, direction: Direction, largest: Largest) -> CraftedFleet:
    """Return a fleet whose attackers send μ + γ·p; they send μ if p is zero."""
    if direction not in get_args(Direction):
        raise ConfigError(f"direction must be one of {', '.join(get_args(Direction))}, got {direction!r}")

    def craft(scene: RoundView) -> NDArray[np.float64]:
        centre = mean(scene.seen)
        p = away(scene.seen, centre, direction)
        return centre + largest(scene.seen, centre, p) * p if p.any() else centre

    return CraftedFleet(fleet, attackers, craft)


def away(updates: Updates, centre: NDArray[np.float64], direction: Direction) -> NDArray[np.float64]:
    """Return p: −μ/‖μ‖ (``unit``), −σ (``deviation``) or −sign μ (``sign``)."""
    if direction == "deviation":
        return -deviation(updates)
    if direction == "sign":
        return -np.sign(centre)
    return -centre / max(float(np.linalg.norm(centre)), np.finfo(np.float64).tiny)


def gaps(
    updates: Updates, centre: NDArray[np.float64], p: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ⟨p, μ − u_i⟩ and ‖μ − u_i‖² for each i."""
    rows = [(p @ (centre - row), (centre - row) @ (centre - row)) for row in updates.vectors]
    return np.array([r[0] for r in rows]), np.array([r[1] for r in rows])


def min_max(fleet: Fleet, attackers: Attackers, *, direction: Direction = "deviation") -> CraftedFleet:
    """Return a fleet whose attackers are no further from any honest update than these are from each other.

        the largest γ with  max_i ‖μ + γp − u_i‖ ≤ max_{i,j} ‖u_i − u_j‖

    ``direction`` is p: ``unit``, ``deviation`` or ``sign``; any other raises ``ConfigError``.
    """
    return perturbed(fleet, attackers, direction, largest_by_distance)


def largest_by_distance(updates: Updates, centre: NDArray[np.float64], p: NDArray[np.float64]) -> float:
    """Return the largest γ that keeps every distance within the largest honest one.

    Squared, the limit for one i is ‖p‖²γ² + 2⟨p, μ − u_i⟩γ + ‖μ − u_i‖² − R ≤ 0, where R is the largest
    squared distance. γ is the smallest of the upper roots.
    """
    b, c = gaps(updates, centre, p)
    a, c = float(p @ p), np.minimum(c - squared_distances(updates.vectors).max(), 0.0)
    root = np.sqrt(b**2 - a * c)
    with np.errstate(divide="ignore", invalid="ignore"):  # in the branch that np.where does not use
        return float(np.min(np.where(b > 0, -c / (b + root), (root - b) / a)))


def min_sum(fleet: Fleet, attackers: Attackers, *, direction: Direction = "deviation") -> CraftedFleet:
    """Return a fleet whose attackers have no larger a sum of squared distances than some honest update has.

        the largest γ with  Σ_i ‖μ + γp − u_i‖² ≤ max_i Σ_j ‖u_i − u_j‖²

    ``direction`` is p: ``unit``, ``deviation`` or ``sign``; any other raises ``ConfigError``.
    """
    return perturbed(fleet, attackers, direction, largest_by_sum)


def largest_by_sum(updates: Updates, centre: NDArray[np.float64], p: NDArray[np.float64]) -> float:
    """Return the largest γ that keeps the sum within the largest honest one, R.

    Because Σ (μ − u_i) = 0, the sum is h·‖p‖²γ² + Σ ‖μ − u_i‖² over h honest updates, so
    γ = √((R − Σ ‖μ − u_i‖²) / (h·‖p‖²)).
    """
    spare = squared_distances(updates.vectors).sum(axis=1).max() - gaps(updates, centre, p)[1].sum()
    return float(np.sqrt(max(spare, 0.0) / (len(updates.vectors) * (p @ p))))
