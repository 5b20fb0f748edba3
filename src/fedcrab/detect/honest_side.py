"""Which of two groups of about the same size is the honest one: the one along which the loss falls.

To first order a round lowers the server's loss by κ·⟨h, G⟩, h the honest mean update and G the step taken,
less a part that grows with ‖G‖². With G = w_a·a + w_b·b both groups' shares of it come from

    F(M_t) - F(M_{t+1})  ≈  α·⟨a_t, G_t⟩ + β·⟨b_t, G_t⟩

fitted over the rounds: the honest group has the larger coefficient. All of it is in the ledger. The loss
must be the server's own: attackers who report losses could turn this around.
"""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite

import numpy as np

from fedcrab.history import History
from fedcrab.history.entries import RoundEntry
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

RIDGE = 1e-3  # of the larger regressor: a group across which nothing moves has a coefficient of 0
WORST_CONDITION = 1e12


def lowers_the_loss(history: History, group: Collection[ClientId]) -> float:
    """How clearly it is the group (above 0), or the others, along which the loss falls: t of α - β."""
    falls, moves = [], []
    before = history.charter.initial_loss
    for entry in history.rounds:
        move = _along(entry, group)
        if move is not None and isfinite(before) and isfinite(entry.loss):
            falls.append(before - entry.loss)
            moves.append(move)
        before = entry.loss
    return _t(np.array(moves), np.array(falls)) if len(falls) > 2 else 0.0


def _along(entry: RoundEntry, group: Collection[ClientId]) -> tuple[float, float] | None:
    """⟨a, G⟩ and ⟨b, G⟩ of a round, G the weighted mean of all; None where one side is missing."""
    inside = np.array([client in group for client in entry.clients], bool)
    if inside.all() or not inside.any():
        return None
    points = range(len(entry.clients))
    step = entry.coordinates.combine(points, entry.examples / entry.examples.sum())
    sides = (np.where(side, entry.examples, 0.0) for side in (inside, ~inside))
    first, second = (entry.coordinates.combine(points, side / side.sum()) @ step for side in sides)
    return float(first), float(second)


def _t(moves: Matrix64, falls: Matrix64) -> float:
    """The difference of the coefficients over its error, by least squares with a ridge."""
    scale = float(np.abs(moves).max()) or 1.0
    moves = moves / scale
    products = moves.T @ moves
    ridged = products + RIDGE * float(np.diagonal(products).max()) * np.eye(2)
    if not np.isfinite(ridged).all() or np.linalg.cond(ridged) > WORST_CONDITION:
        return 0.0
    coefficients = np.linalg.solve(ridged, moves.T @ falls)
    left = falls - moves @ coefficients
    variance = max(float(left @ left) / (len(falls) - 2), 1e-12 * float(falls @ falls))
    contrast = np.array([1.0, -1.0])
    spread = np.linalg.solve(ridged, contrast)
    error = np.sqrt(variance * spread @ products @ spread)
    return float(contrast @ coefficients / error) if error > 0 else 0.0
