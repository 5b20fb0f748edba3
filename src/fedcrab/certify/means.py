"""Whether a history's aggregates were the weighted means that they are said to be, as far as it can tell.

The ledger has the cosine of every update with the aggregate that was really applied: those of the mean must
be the same. And where two models in a row are kept, their distance must be the length of the mean.
"""

from __future__ import annotations

import numpy as np

from fedcrab.history import History
from fedcrab.history.entries import RoundEntry
from fedcrab.vectors import Matrix64, norm

CLOSE = 1e-4  # how well a float32 aggregate has the direction and length of the mean


def first_other_aggregate(history: History) -> int | None:
    """The first round whose aggregate cannot have been the mean; None where nothing speaks against it."""
    for entry in history.rounds:
        if not len(entry.clients) or entry.coordinates.sketched:
            continue
        mean = entry.coordinates.combine(range(len(entry.clients)), entry.examples / entry.examples.sum())
        slack = CLOSE * (1 + float(entry.norms.max()) / max(float(np.linalg.norm(mean)), 1e-300))
        if _turned(entry, mean) > slack or _stretched(history, entry, mean) > slack:
            return entry.index
    return None


def _turned(entry: RoundEntry, mean: Matrix64) -> float:
    """The largest difference of a cosine from what it is with the mean."""
    rows = np.array([_padded(entry.coordinates.row(c), len(mean)) for c in range(len(entry.clients))])
    scale = np.linalg.norm(rows, axis=1) * np.linalg.norm(mean)
    there = scale > 0
    return float(np.abs(rows[there] @ mean / scale[there] - entry.cosines[there]).max(initial=0.0))


def _padded(row: Matrix64, width: int) -> Matrix64:
    return np.pad(row, (0, width - len(row)))


def _stretched(history: History, entry: RoundEntry, mean: Matrix64) -> float:
    """By which share the model moved more or less than the mean; 0 where it cannot be told."""
    t, length = entry.index, float(np.linalg.norm(mean))
    last = t + 1 == len(history.rounds)
    there = last or (t + 1 in history.kept and history.rounds[t + 1].start == entry.after)
    if t not in history.kept or not there or not length:
        return 0.0
    before, after = history.model(t), history.final_model() if last else history.model(t + 1)
    trained = history.charter.layout.trained()
    rounding = 2.0**-23 * (norm(before, trained) + norm(after, trained))
    moved = norm(after.astype(np.float64) - before, trained)
    return max(0.0, abs(moved - length) - rounding) / length
