"""Calibration: the fresh direction with the stored length.

    ũ = ‖u‖ · û / ‖û‖        (equation 8 of Crab; FedEraser's calibration)

u is the update in the history, û its renewal. The ratio ‖u‖ / ‖û‖ is at most ``cap``, because the direction
of a tiny renewal is mostly noise. Buffers (BatchNorm's statistics and counters) are not part of either norm
and stay as renewed. A renewal of zero has no direction; its client is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedcrab.errors import ConfigError
from fedcrab.recover.step import Capped, RoundUpdates
from fedcrab.types import ClientId, Layout, Rejection, Updates, Vector
from fedcrab.vectors import norm

SAFE_RATIO = 100.0  # only to avoid division by almost zero


def calibrate(fresh: Vector, ratio: float, trained: Sequence[slice]) -> Vector:
    """Return the update with its trained numbers scaled; with ratio = ‖u‖ / ‖û‖, equation 8."""
    calibrated = fresh.copy()
    for part in trained:
        calibrated[part] = np.multiply(fresh[part], ratio, dtype=np.float64)
    return calibrated


def calibrated(
    renewed: RoundUpdates, lengths: Mapping[ClientId, float], *, cap: float, layout: Layout
) -> RoundUpdates:
    """Return every renewal scaled to its client's length, as far as the cap allows."""
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
    """Return the renewals that are not zero; the other clients are dropped."""
    updates, trained = renewed.updates, layout.trained()
    still = [c for c, row in zip(updates.clients, updates.vectors, strict=True) if not norm(row, trained)]
    if not still:
        return renewed
    dropped = (*renewed.dropped, *(Rejection(c, "the renewed update is zero") for c in still))
    kept = updates.without(still)
    return replace(renewed, updates=kept, dropped=tuple(sorted(dropped, key=lambda r: r.client)))


def check_cap(cap: float) -> None:
    """Raise ``ConfigError`` unless the cap is above 0; infinity means no cap."""
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not cap > 0:
        raise ConfigError(f"cap must be a number above 0, got {cap!r}")
