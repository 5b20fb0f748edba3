"""Noise-trim: what the paper evaluates under the name Trim attack.

    sends u[k] + ε_k (mode `add`) or ε_k (mode `replace`) at a fraction of coordinates k, elsewhere u[k]
    ε_k ~ N(0, (s·σ_u)²)

u the attacker's own update, σ_u the deviation of its coordinates, s `scale`. The coordinates are drawn anew
for each attacker and round, 10% by default. Not the Trim attack of Fang et al.; that one is fang_trim.
Needs no honest client: a round without any is attacked the same.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.attackers import Attackers
from fedcrab.attack.crafted import CraftedFleet, Scene
from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.types import Fleet, Vector

Mode = Literal["add", "replace"]


def noise_trim(
    fleet: Fleet, attackers: Attackers, *, mode: Mode = "add", fraction: float = 0.1, scale: float = 1.0
) -> CraftedFleet:
    """The fleet whose attackers disturb some coordinates: ``scale`` 0 adds nothing, or replaces by zero."""
    if mode not in get_args(Mode):
        raise ConfigError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
    if not 0 < fraction <= 1:
        raise ConfigError(f"fraction must be more than 0 and at most 1, got {fraction}")
    if not (np.isfinite(scale) and scale >= 0):
        raise ConfigError(f"scale must be 0 or more, got {scale}")

    def disturbed(rng: np.random.Generator, update: Vector) -> NDArray[np.float64]:
        sent = update.astype(np.float64)
        places = rng.permutation(len(sent))[: round(fraction * len(sent))]
        noise = rng.normal(0.0, scale * sent.std(), len(places))
        sent[places] = sent[places] + noise if mode == "add" else noise
        return sent

    def craft(scene: Scene) -> NDArray[np.float64]:
        rngs = (rng_for(attackers.seed, "noise-trim", scene.round, client) for client in scene.own.clients)
        return np.stack([disturbed(rng, row) for rng, row in zip(rngs, scene.own.vectors, strict=True)])

    return CraftedFleet(fleet, attackers, craft)
