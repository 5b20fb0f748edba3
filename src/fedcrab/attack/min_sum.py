"""Min-sum: no larger a sum of squared distances to the honest updates than any honest update has.

    sends μ + γ·p,   p ∈ {−μ/‖μ‖, −σ, −sign μ}
    the largest γ with  Σ_i ‖μ + γp − u_i‖² ≤ max_i Σ_j ‖u_i − u_j‖²

μ, σ the coordinate-wise mean and deviation of the h honest updates u_i. As Σ (μ − u_i) = 0, the left side is
h·‖p‖²γ² + Σ ‖μ − u_i‖², so γ = √((R − Σ ‖μ − u_i‖²) / (h·‖p‖²)), R the right side.
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


def min_sum(fleet: Fleet, attackers: Attackers, *, direction: Direction = "deviation") -> CraftedFleet:
    """The fleet whose attackers stay within the largest honest sum of squared distances."""
    return perturbed(fleet, attackers, direction, largest)


def largest(updates: Updates, centre: NDArray[np.float64], p: NDArray[np.float64]) -> float:
    """The largest γ that keeps the sum within the largest honest one."""
    spare = squared_distances(updates.vectors).sum(axis=1).max() - gaps(updates, centre, p)[1].sum()
    return float(np.sqrt(max(spare, 0.0) / (len(updates.vectors) * (p @ p))))
