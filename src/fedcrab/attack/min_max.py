"""Min-max: no further from any honest update than the honest updates are from each other.

    sends μ + γ·p,   p ∈ {−μ/‖μ‖, −σ, −sign μ}
    the largest γ with  max_i ‖μ + γp − u_i‖ ≤ max_{i,j} ‖u_i − u_j‖

μ, σ the coordinate-wise mean and deviation of the honest updates u_i. Squared, the constraint of one i is
‖p‖²γ² + 2⟨p, μ − u_i⟩γ + ‖μ − u_i‖² − R ≤ 0, R the largest squared distance; γ is the smallest of the upper
roots.
Shejwalkar, Houmansadr, "Manipulating the Byzantine", NDSS 2021 (AGR-agnostic).
In a round without honest clients the attackers' own updates stand for them; with one, γ = 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.columns import squared_distances
from fedcrab.attack.attackers import Attackers
from fedcrab.attack.crafted import CraftedFleet
from fedcrab.attack.perturbation import Direction, gaps, perturbed
from fedcrab.types import Fleet, Updates


def min_max(fleet: Fleet, attackers: Attackers, *, direction: Direction = "deviation") -> CraftedFleet:
    """The fleet whose attackers stay within the largest honest distance."""
    return perturbed(fleet, attackers, direction, largest)


def largest(updates: Updates, centre: NDArray[np.float64], p: NDArray[np.float64]) -> float:
    """The largest γ that keeps every distance within the largest honest one."""
    b, c = gaps(updates, centre, p)
    a, c = float(p @ p), np.minimum(c - squared_distances(updates.vectors).max(), 0.0)
    root = np.sqrt(b**2 - a * c)
    with np.errstate(divide="ignore", invalid="ignore"):  # where b ≤ 0, in the form that is not taken
        return float(np.min(np.where(b > 0, -c / (b + root), (root - b) / a)))
