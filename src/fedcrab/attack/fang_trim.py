"""Fang et al.'s attack on the trimmed mean, full knowledge.

    s[k] = sign of the honest mean update;  sends a local model w with
    s < 0:  w[k] in [max, 2·max] if max > 0 else [max, max/2]
    s > 0:  w[k] in [min/2, min] if min > 0 else [2·min, min]

max, min over the coordinates k of the honest *local models* M_t + u; what is sent as an update is w − M_t.
Each attacker draws its own w, uniformly, anew each round. Where s = 0 there is no direction to reverse: w =
M_t.
Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX Security 2020 (b =
2).
In a round without honest clients the attackers' own updates stand for them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.attackers import Attackers
from fedcrab.attack.crafted import CraftedFleet, Scene
from fedcrab.attack.moments import mean
from fedcrab.seeds import rng_for
from fedcrab.types import Fleet


def fang_trim(fleet: Fleet, attackers: Attackers) -> CraftedFleet:
    """The fleet whose attackers send models just beyond the honest ones, on the wrong side."""

    def craft(scene: Scene) -> NDArray[np.float64]:
        model, direction = scene.model.astype(np.float64), np.sign(mean(scene.seen))
        near, far = _range(model, scene.seen.vectors, direction)
        rows = []
        for client in scene.own.clients:
            drawn = rng_for(attackers.seed, "fang-trim", scene.round, client).random(len(model))
            rows.append(np.where(direction == 0, 0.0, near + drawn * (far - near) - model))
        return np.stack(rows)

    return CraftedFleet(fleet, attackers, craft)


def _range(
    model: NDArray[np.float64], updates: NDArray[np.float32], direction: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each coordinate the extreme honest value on the wrong side, and the end beyond it."""
    highest, lowest = model + updates.max(axis=0), model + updates.min(axis=0)
    above = np.where(highest > 0, 2 * highest, highest / 2)
    below = np.where(lowest > 0, lowest / 2, 2 * lowest)
    return np.where(direction < 0, highest, lowest), np.where(direction < 0, above, below)
