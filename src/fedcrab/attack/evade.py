"""Evade: poison that Crab's client selection leaves out.

Crab keeps the clients whose updates point along the aggregate G_t (cosine), so poison orthogonal to G_t is
left out of the history. Orthogonal to the G_t that *results*, attackers included, under fedavg. With p the
shares of all participants, H = Σ p_c·u_c over the honest, P = Σ p_c over the attackers, who all send the same
v of length ρ:

    G = H + P·v,   ⟨v, G⟩ = ⟨v, H⟩ + P·ρ² = 0
    v = a·ĥ + b·q̂,   a = −P·ρ²/‖H‖,   b = √(ρ² − a²)

ĥ the direction of H, q̂ that of the poison's part orthogonal to H, the poison being the attackers' mean
update as the inner fleet answers: ``evade(backdoor(fleet, attackers), attackers)``. A little has to point
against H, or v's own weight in G would show.
There is a solution while P·ρ < ‖H‖. A larger `norm` is cut to ρ = ‖H‖/(P·√2), where b, the poison that
arrives, is the most that any ρ gives. Without honest clients, with H = 0, or with no part orthogonal to H,
nothing can be orthogonal, and the poison is sent as it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.malicious_fleet import Attackers, CraftedFleet, RoundView
from fedcrab.errors import ConfigError
from fedcrab.types import Fleet, Updates


def evade(fleet: Fleet, attackers: Attackers, *, norm: float | None = None) -> CraftedFleet:
    """Return a fleet whose attackers send poison orthogonal to G_t, of length ``norm`` or of its own."""
    if norm is not None and not (np.isfinite(norm) and norm > 0):
        raise ConfigError(f"norm must be more than 0, or None to keep the poison's, got {norm}")

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
    """v, for H, P, the poison and ρ; None where there is none."""
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
