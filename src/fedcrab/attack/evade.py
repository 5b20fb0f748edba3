"""Evade: poison that Crab's client selection does not keep.

Crab keeps the clients whose updates point along the aggregate G_t (cosine). Poison orthogonal to G_t is
therefore not kept. It must be orthogonal to the G_t that *results*, with the attackers included, under
fedavg. p_c are the shares of all participants, H = Σ p_c·u_c is the sum over the honest ones, and P = Σ p_c
is the share of the attackers. They all send the same v of length ρ:

    G = H + P·v,   ⟨v, G⟩ = ⟨v, H⟩ + P·ρ² = 0
    v = a·ĥ + b·q̂,   a = −P·ρ²/‖H‖,   b = √(ρ² − a²)

ĥ is the direction of H. q̂ is the direction of the poison without its part along H. The poison is the
attackers' mean update from the inner fleet: ``evade(backdoor(fleet, attackers), attackers)``. A small part
of v points against H; otherwise v's own weight in G would be visible.

A solution exists while P·ρ < ‖H‖. A larger ``norm`` is cut to ρ = ‖H‖/(P·√2), which gives the largest b,
the part of the poison that arrives. If there are no honest clients, H = 0, or the poison has no part
orthogonal to H, there is no solution, and the poison is sent unchanged.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.malicious_fleet import Attackers, CraftedFleet, RoundView
from fedcrab.errors import ConfigError
from fedcrab.types import Fleet, Updates


def evade(fleet: Fleet, attackers: Attackers, *, norm: float | None = None) -> CraftedFleet:
    """Return a fleet whose attackers send poison orthogonal to G_t.

    ``norm`` is its length (None: the poison's own). Raises ``ConfigError`` unless it is None, or finite and
    more than 0.
    """
    if norm is not None and not (np.isfinite(norm) and norm > 0):
        raise ConfigError(f"norm must be more than 0, or None for the poison's own, got {norm}")

    def craft(scene: RoundView) -> NDArray[np.float64]:
        total = scene.honest.weights.sum() + scene.own.weights.sum()
        share = float(scene.own.weights.sum() / total)
        poison = _weighted_sum(scene.own, share * total)
        length = float(np.linalg.norm(poison)) if norm is None else norm
        sent = orthogonal(_weighted_sum(scene.honest, total), share, poison, length)
        return scene.own.vectors.astype(np.float64) if sent is None else sent

    return CraftedFleet(fleet, attackers, craft)


def orthogonal(
    honest: NDArray[np.float64], share: float, poison: NDArray[np.float64], norm: float
) -> NDArray[np.float64] | None:
    """Return v for H, P, the poison and ρ; None if there is no solution."""
    size = float(np.linalg.norm(honest))
    if size == 0:
        return None
    towards = honest / size
    rest = poison - (poison @ towards) * towards
    left = float(np.linalg.norm(rest))
    if left <= 1e-9 * float(np.linalg.norm(poison)):
        return None
    length = norm if share * norm < size else size / (share * np.sqrt(2))
    along = -share * length**2 / size
    return np.asarray(along * towards + np.sqrt(length**2 - along**2) * (rest / left))


def _weighted_sum(updates: Updates, total: float) -> NDArray[np.float64]:
    """Σ n_c·u_c / total."""
    result = np.zeros(updates.vectors.shape[1])
    for weight, row in zip(updates.weights, updates.vectors, strict=True):
        result += (weight / total) * row
    return result
