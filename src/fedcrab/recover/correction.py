"""Measure the correction of stored updates for another model, from the fresh answers of a few clients.

The difference û - q of client c has a common part and an own part, which changes slowly:

    û - q ≈ c_t + e_c

The asked clients show r = û - q - e_c. c_t is a robust mean of these r: it leaves out the largest and the
smallest two fifths of each coordinate, after each r is clipped to twice the median length. Its difference
from the estimate ĉ (:mod:`fedcrab.recover.estimate`) is partly noise, and is reduced accordingly (James and
Stein 1961):

    c_t = ĉ + K·(mean of r - ĉ),    K = 1 - standard error² / ‖mean of r - ĉ‖²,  at least ½

e_c = û - q - c_t is kept until c is asked again, as SAGA (Defazio et al., NeurIPS 2014) keeps gradients. Over
six rounds of training with uneven clients, e_c correlates with itself by 0.7 to 0.8. Without it, the mean of
a few clients differs from the mean of all. An asked client can move the others' updates only through the
robust mean, and its own by its answer, as in retraining.

With trust fewer clients are asked, so e is older when it is used, and was measured against a less certain c.
So 0.93 of it is left after each round. (The regression of a client's own part on its e, in three trainings
with uneven clients: 0.55 for an e of up to 8 rounds before, 0.40 for one of 9 to 20, 0.22 for an older one.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import hypot, sqrt

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.mean import shares
from fedcrab.recover.fedrecover import trained_only
from fedcrab.recover.step import Pair
from fedcrab.types import ClientId, Layout, Updates, Vector
from fedcrab.vectors import is_finite, norm

CLIP = 2.0  # times the median length of the r
FEWEST = 3  # answers for a robust mean, unless there are no more clients
TRIMMED = 0.4  # share of a coordinate's values left out at each end, at least one: two of five may lie
LEAST_GAIN = 0.5  # the least K
FADING = 0.93  # with trust: the share of e that is left after a round

Rows = Mapping[ClientId, Vector]


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """c: how much the clients' updates differ from the stored ones, and how certain that is."""

    vector: Vector = field(repr=False)  # the common part; integer buffers are zero
    measured: Vector = field(repr=False)  # the robust mean of the r alone, whatever was estimated
    changes: Rows = field(repr=False)  # û - q per answer, clipped; integer buffers are zero
    clients: int  # the number of honest clients, whether they answered or not
    spread: float  # √(Σ‖r - c‖² / (answers - 1)): how far one client's r is from c
    new: float  # ‖mean of r - ĉ‖: the error of the estimate; ‖c‖ without one

    @property
    def answers(self) -> int:
        """The number of answers it is made from."""
        return len(self.changes)

    @property
    def standard_error(self) -> float:
        """Spread / √answers, reduced by the share of clients asked: with all of them it is 0."""
        return self._error(self.answers)

    @property
    def noise(self) -> float:
        """√(spread² / clients + standard error²): how much the step varies from one training to the next."""
        return self.noise_with(self.answers)

    def noise_with(self, answers: int) -> float:
        """Return the noise that this many answers would have had."""
        return hypot(self.spread / sqrt(self.clients), self._error(answers))

    def _error(self, answers: int) -> float:
        return self.spread * sqrt((1 - answers / self.clients) / answers)

    def own(self, client: ClientId, layout: Layout) -> Vector:
        """Return e: this client's difference minus the common part; zero where a number is not trained."""
        return trained_only(self.changes[client] - self.vector, layout)


def own_parts(kept: Mapping[ClientId, Pair], t: int, *, fading: bool) -> Rows:
    """Return e of each client in round t; with ``fading``, 0.93 to the power of its age in rounds."""
    if not fading:
        return {client: pair.changed for client, pair in kept.items()}
    return {client: pair.changed * np.float32(FADING ** (t - pair.round)) for client, pair in kept.items()}


def correction_of(
    fresh: Updates,
    stored: Updates,
    own: Rows,
    predicted: Vector | None,
    *,
    trust: bool,
    layout: Layout,
) -> Correction | None:
    """Return the correction c from the answers of some clients; None if there are too few.

    ``own`` holds the known e, ``predicted`` is ĉ. With ``trust``, c is the plain weighted mean.
    """
    kept = dict(zip(stored.clients, zip(stored.vectors, stored.weights, strict=True), strict=True))
    found: dict[ClientId, Vector] = {}
    for client, row in zip(fresh.clients, fresh.vectors, strict=True):
        if client in kept:
            with np.errstate(over="ignore", invalid="ignore"):
                change = _without_integers(row - kept[client][0], layout)
            if is_finite(change):
                found[client] = change
    if len(found) < min(1 if trust else FEWEST, len(kept)) or not found:
        return None
    before = {client: own.get(client) for client in found}
    shown = np.array([change if (e := before[c]) is None else change - e for c, change in found.items()])
    if trust:
        mean = shares(np.array([kept[c][1] for c in found])) @ shown.astype(np.float64)
    else:
        shown = _clipped(shown, layout)
        mean = _trimmed_mean(shown)
    vector = np.asarray(mean, np.float32)
    spread = _spread(shown, vector, layout)
    rows = zip(found, shown, strict=True)
    changes = {c: row if (e := before[c]) is None else row + e for c, row in rows}
    new = norm(vector, layout.trained())
    return _damped(Correction(vector, vector, changes, len(kept), spread, new), predicted, layout)


def _damped(measured: Correction, predicted: Vector | None, layout: Layout) -> Correction:
    """Return c with its difference from the estimate reduced by the noise; buffers as measured."""
    if predicted is None:
        return measured
    new = trained_only(measured.vector - predicted, layout)
    length = norm(new)
    gain = max(LEAST_GAIN, 1 - (measured.standard_error / length) ** 2) if length else 1.0
    vector = (measured.vector - np.float32(1 - gain) * new).astype(np.float32)
    return replace(measured, vector=vector, new=length)


def spread_of(rows: NDArray[np.float32], layout: Layout) -> float:
    """Return √(Σ‖row - mean‖² / (rows - 1)), over the trained numbers; 0 for a single row."""
    mean = np.asarray(rows.mean(axis=0, dtype=np.float64), np.float32)
    return _spread(rows, mean, layout)


def _spread(rows: NDArray[np.float32], centre: Vector, layout: Layout) -> float:
    apart = [norm(row - centre, layout.trained()) ** 2 for row in rows]
    return float(np.sqrt(sum(apart) / max(len(apart) - 1, 1)))


def _without_integers(vector: Vector, layout: Layout) -> Vector:
    for f, place in zip(layout.fields, layout.slices().values(), strict=True):
        if f.integer:
            vector[place] = 0
    return vector


def _clipped(shown: NDArray[np.float32], layout: Layout) -> NDArray[np.float32]:
    """Clip each to twice the median length."""
    lengths = np.array([norm(row, layout.trained()) for row in shown])
    most = CLIP * float(np.median(lengths))
    factors = np.divide(most, lengths, out=np.ones_like(lengths), where=lengths > most)
    clipped: NDArray[np.float32] = (shown * factors[:, None]).astype(np.float32)
    return clipped


def _trimmed_mean(shown: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the mean of each coordinate without its largest and smallest two fifths."""
    cut = max(1, int(TRIMMED * len(shown))) if len(shown) >= FEWEST else 0
    inner = np.sort(shown, axis=0)[cut : len(shown) - cut]
    mean: NDArray[np.float64] = inner.mean(axis=0, dtype=np.float64)
    return mean
