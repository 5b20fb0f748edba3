"""FedRecover's abnormality threshold: above it, an estimated number is not believed.

    τ = max over rounds t of τ_t,   at most a share ``tolerance`` of all |u_t^c[k]| exceed τ_t

over the honest clients c of round t and the trained numbers k.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import floor

import numpy as np
from numpy.typing import NDArray

from fedcrab.history import History
from fedcrab.types import ClientId, Updates


def largest_usual(history: History, malicious: Collection[ClientId], tolerance: float) -> float:
    """τ, by one pass over the stored updates."""
    trained = history.charter.layout.trained()
    rounds = (history.updates(entry.index).without(malicious) for entry in history.rounds)
    return max((_usual(updates, trained, tolerance) for updates in rounds), default=0.0)


def _usual(updates: Updates, trained: Sequence[slice], tolerance: float) -> float:
    """τ_t: the smallest of the values that few enough others exceed."""
    exceeding = floor(tolerance * len(updates.clients) * sum(part.stop - part.start for part in trained))
    largest = [_largest(np.abs(row[part]), exceeding + 1) for row in updates.vectors for part in trained]
    return float(_largest(np.concatenate(largest), exceeding + 1)[0]) if largest else 0.0


def _largest(values: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """The ``count`` largest, the smallest of them first."""
    if count >= len(values):
        return np.sort(values)
    return np.partition(values, len(values) - count)[-count:]
