"""Attackers who know Crab: each function wraps a fleet whose attackers already plant a backdoor.

evade       poison orthogonal to the aggregate that results, so that the cosine selection leaves it out
sybils      the same, but each attacker adds its own part and these parts cancel, so no two send the same
cut         poison as near to the aggregate as the worst honest clients, so that it is just not selected
inflate     besides the backdoor, a large movement that is undone in the next round: a large S without effect
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack import Attackers, CraftedFleet, RoundView, evade
from fedcrab.seeds import rng_for
from fedcrab.types import Fleet, Updates

Rows = NDArray[np.float64]


def sybils(fleet: Fleet, attackers: Attackers) -> Fleet:
    """Return ``evade`` with an own part per attacker, as long as the common part; these parts cancel."""
    shared = evade(fleet, attackers)

    def craft(scene: RoundView) -> Rows:
        sent = np.broadcast_to(shared.craft(scene), scene.own.vectors.shape).astype(np.float64)
        rng = rng_for(attackers.seed, "sybils", scene.round)
        parts = rng.normal(size=sent.shape)
        parts -= _mean(Updates(scene.own.clients, parts.astype(np.float32), scene.own.weights))
        lengths = np.linalg.norm(parts, axis=1, keepdims=True)
        return sent + parts * (np.linalg.norm(sent, axis=1).mean() / np.maximum(lengths.mean(), 1e-12))

    return CraftedFleet(fleet, attackers, craft)


def cut(fleet: Fleet, attackers: Attackers, *, selected: float = 0.7, most: float = 4.0) -> Fleet:
    """Return a fleet that sends the poison orthogonal to the honest mean, as long as possible unselected.

    Its length is at most ``most`` times its own. As it grows, its cosine with the step rises, and the honest
    cosines fall.
    """

    def craft(scene: RoundView) -> Rows:
        n = len(scene.honest.clients) + len(scene.own.clients)
        left = max(0, n - round(selected * n) - len(scene.own.clients))  # honest clients left out too
        honest, poison = _mean(scene.honest), _mean(scene.own)
        share = scene.own.weights.sum() / (scene.own.weights.sum() + scene.honest.weights.sum())
        across = poison - (poison @ honest) / (honest @ honest) * honest
        low, high = 0.0, most * float(np.linalg.norm(poison) / np.linalg.norm(across))
        for _ in range(30):
            middle = (low + high) / 2
            step = (1 - share) * honest + share * middle * across
            worst = np.sort(_cosines(scene.honest.vectors, step))[left]
            hidden = _cosines(across[None], step)[0] < worst
            low, high = (middle, high) if hidden else (low, middle)
        return np.asarray(low * across)

    return CraftedFleet(fleet, attackers, craft)


def inflate(fleet: Fleet, attackers: Attackers, *, factor: float = 4.0) -> Fleet:
    """Return a fleet that adds a movement back and forth along one direction, ``factor`` times an update."""

    def craft(scene: RoundView) -> Rows:
        push = rng_for(attackers.seed, "push").normal(size=scene.own.vectors.shape[1])
        push *= factor * PUSH / np.linalg.norm(push)
        return scene.own.vectors.astype(np.float64) + (push if scene.round % 2 == 0 else -push)

    return CraftedFleet(fleet, attackers, craft)


PUSH = 0.5  # the length of an early honest update on digits


def _mean(updates: Updates) -> Rows:
    return np.average(updates.vectors.astype(np.float64), axis=0, weights=updates.weights)


def _cosines(vectors: NDArray[np.floating], step: Rows) -> Rows:
    scale = np.linalg.norm(vectors, axis=1) * np.linalg.norm(step)
    return np.asarray(vectors @ step / np.maximum(scale, 1e-300))
