"""Fang et al.'s attacks on Krum and on the trimmed mean, with full knowledge.

Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX Security 2020. In
a round without honest clients the attackers use their own updates instead of the honest ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.krum import scores
from fedcrab.attack.malicious_fleet import Attackers, CraftedFleet, RoundView, mean
from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.types import Fleet
from fedcrab.vectors import squared_distances, squared_norms

LEAST = 1e-5


def fang_krum(fleet: Fleet, attackers: Attackers, *, byzantine: int | None = None) -> CraftedFleet:
    """Return a fleet whose attackers make Krum select them.

        the model M_t − λ·s, so the update −λ·s;   λ is halved until Krum selects it or λ < 1e-5

    s is the sign of the honest mean update. All attackers send the same update, so their distances to each
    other are 0. λ starts at the value above which Krum cannot select it:

        λ ≤ (√(min_i Σ ‖u_l − u_i‖² / (n − 2m − 1)) + max_i ‖u_i‖) / ‖s‖

    over honest i, and l among the n − m − 2 nearest honest neighbours of i. An attacker has n − 2m − 1 honest
    neighbours, each at least λ‖s‖ − ‖u‖ away. If n ≤ 2m + 1, the divisor is 1.

    ``byzantine`` is the number of attackers that the server's Krum tolerates (None: as many as attack in the
    round). Raises ``ConfigError`` if it is negative. Departs from the paper in two points: attackers send
    exactly the same, not points within a small ε of each other. If they are too many for Krum to be defined
    (2m + 2 ≥ n), they assume a Krum that tolerates as many as n allows.
    """
    if byzantine is not None and byzantine < 0:
        raise ConfigError(
            f"byzantine must be 0 or more, or None for the number of attackers, got {byzantine}"
        )

    def craft(scene: RoundView) -> NDArray[np.float64]:
        attacking, n = len(scene.own.clients), len(scene.own.clients) + len(scene.seen.clients)
        tolerated = max(0, min(attacking if byzantine is None else byzantine, (n - 3) // 2))
        direction = np.sign(mean(scene.seen))
        return -_strength(scene.seen.vectors, direction, attacking, tolerated) * direction

    return CraftedFleet(fleet, attackers, craft)


def _strength(
    honest: NDArray[np.float32], direction: NDArray[np.float64], attacking: int, tolerated: int
) -> float:
    """Return the first λ, halving, at which Krum selects an attacker."""
    pairs, lengths = squared_distances(honest), squared_norms(honest)
    along = np.array([row @ direction for row in honest])
    size = max(1.0, float(direction @ direction))
    strength = _bound(pairs, lengths, attacking) / np.sqrt(size)
    while strength >= LEAST:
        away = np.maximum(lengths + 2 * strength * along + strength**2 * size, 0.0)
        if _selected(pairs, away, attacking, tolerated):
            break
        strength /= 2
    return float(strength)


def _bound(pairs: NDArray[np.float64], lengths: NDArray[np.float64], attacking: int) -> float:
    """Return λ‖s‖ above which no attacker is selected."""
    h = len(pairs)
    nearest = np.sort(pairs, axis=1)[:, 1 : max(1, h - 1)]  # without itself, the n − m − 2 nearest
    closest = nearest.sum(axis=1).min() / max(1, h - attacking - 1)
    return float(np.sqrt(closest) + np.sqrt(lengths.max()))


def _selected(pairs: NDArray[np.float64], away: NDArray[np.float64], attacking: int, tolerated: int) -> bool:
    """Return whether Krum prefers the attackers, all at one point and ``away`` from each honest client."""
    h = len(pairs)
    squared = np.zeros((h + attacking, h + attacking))
    squared[:h, :h] = pairs
    squared[:h, h:] = away[:, None]
    squared[h:, :h] = away
    score = scores(squared, tolerated)
    return bool(score[h] < score[:h].min())


def fang_trim(fleet: Fleet, attackers: Attackers) -> CraftedFleet:
    """Return a fleet whose attackers send models just beyond the honest ones, on the wrong side.

        s[k] = sign of the honest mean update;  an attacker sends a local model w with
        s < 0:  w[k] in [max, 2·max] if max > 0 else [max, max/2]
        s > 0:  w[k] in [min/2, min] if min > 0 else [2·min, min]

    max and min are over the honest *local models* M_t + u, per coordinate k; the update is w − M_t (the
    paper's b is 2). Each attacker draws its own w uniformly, again in each round. Where s = 0 there is no
    direction to reverse, and w = M_t.
    """

    def craft(scene: RoundView) -> NDArray[np.float64]:
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
    """Return, per coordinate, the extreme honest value on the wrong side, and the end of the range."""
    highest, lowest = model + updates.max(axis=0), model + updates.min(axis=0)
    above = np.where(highest > 0, 2 * highest, highest / 2)
    below = np.where(lowest > 0, lowest / 2, 2 * lowest)
    return np.where(direction < 0, highest, lowest), np.where(direction < 0, above, below)
