"""The coordinate-wise mean and deviation of updates, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.types import Updates


def mean(updates: Updates) -> NDArray[np.float64]:
    """μ: plain, not weighted; attackers imitate clients, not examples."""
    return np.asarray(updates.vectors.mean(axis=0, dtype=np.float64))


def deviation(updates: Updates) -> NDArray[np.float64]:
    """σ = √(Σ (u − μ)² / n), row by row so that no float64 copy of all updates is made."""
    centre = mean(updates)
    total = np.zeros_like(centre)
    for row in updates.vectors:
        total += (row - centre) ** 2
    return np.asarray(np.sqrt(total / len(updates.vectors)))
