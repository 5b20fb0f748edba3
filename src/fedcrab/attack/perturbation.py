"""What min-max and min-sum share: μ + γ·p, away from the mean as far as a constraint allows.

Shejwalkar, Houmansadr, "Manipulating the Byzantine", NDSS 2021.
Departs from it: the paper bisects γ from 10 down to steps of 1e-5; both constraints are quadratic in γ, so
the largest γ is a root, exact at any scale of the updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.attackers import Attackers
from fedcrab.attack.crafted import CraftedFleet, Scene
from fedcrab.attack.moments import deviation, mean
from fedcrab.errors import ConfigError
from fedcrab.types import Fleet, Updates

Direction = Literal["unit", "deviation", "sign"]
Largest = Callable[[Updates, NDArray[np.float64], NDArray[np.float64]], float]
"""(honest updates, μ, p) -> the largest γ."""


def perturbed(fleet: Fleet, attackers: Attackers, direction: Direction, largest: Largest) -> CraftedFleet:
    """The fleet whose attackers send μ + γ·p; where p is zero there is nowhere to go: μ."""
    if direction not in get_args(Direction):
        raise ConfigError(f"direction must be one of {', '.join(get_args(Direction))}, got {direction!r}")

    def craft(scene: Scene) -> NDArray[np.float64]:
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
