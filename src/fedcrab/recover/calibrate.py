"""Calibration: the fresh direction at the remembered length.

    ũ = ‖u‖ · û / ‖û‖        (equation 8 of Crab; FedEraser's calibration)

u the update of the history, û its renewal. The ratio ‖u‖ / ‖û‖ is at most ``cap``: a renewal of almost
nothing has a direction of almost nothing but noise. Buffers (BatchNorm's statistics and counters) have no
part in either norm and stay as they were renewed. A renewal of nothing at all has no direction; its
client is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedcrab.errors import ConfigError
from fedcrab.recover.step import Capped, RoundUpdates
from fedcrab.types import ClientId, Layout, Rejection, Updates, Vector
from fedcrab.vectors import norm

SAFE_RATIO = 100.0  # only against division by almost nothing


def calibrate(fresh: Vector, ratio: float, trained: Sequence[slice]) -> Vector:
    """The update with its trained numbers scaled; with ratio = ‖u‖ / ‖û‖, equation 8."""
    calibrated = fresh.copy()
    for part in trained:
        calibrated[part] = np.multiply(fresh[part], ratio, dtype=np.float64)
    return calibrated


def calibrated(
    renewed: RoundUpdates, lengths: Mapping[ClientId, float], *, cap: float, layout: Layout
) -> RoundUpdates:
    """Every renewal at its client's length, or as near to it as the cap allows."""
    moving = without_zero(renewed, layout)
    trained, updates, capped = layout.trained(), moving.updates, []
    rows = np.empty_like(updates.vectors)
    norms = tuple(norm(fresh, trained) for fresh in updates.vectors)
    for row, client, fresh, length in zip(rows, updates.clients, updates.vectors, norms, strict=True):
        ratio = lengths[client] / length
        if ratio > cap:
            capped.append(Capped(client, ratio))
        row[:] = calibrate(fresh, min(ratio, cap), trained)
    scaled = Updates(updates.clients, rows, updates.weights)
    return replace(moving, updates=scaled, capped=tuple(capped), renewed=norms)


def without_zero(renewed: RoundUpdates, layout: Layout) -> RoundUpdates:
    """The renewals that have a direction; the clients of the others are dropped."""
    updates, trained = renewed.updates, layout.trained()
    still = [c for c, row in zip(updates.clients, updates.vectors, strict=True) if not norm(row, trained)]
    if not still:
        return renewed
    dropped = (*renewed.dropped, *(Rejection(c, "the renewed update is zero") for c in still))
    kept = updates.without(still)
    return replace(renewed, updates=kept, dropped=tuple(sorted(dropped, key=lambda r: r.client)))


def check_cap(cap: float) -> None:
    """The cap is a ratio above 0; infinity is no cap at all."""
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not cap > 0:
        raise ConfigError(f"cap must be a number above 0, got {cap!r}")
