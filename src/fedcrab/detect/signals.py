"""What the geometry of the rounds tells of the clients: a few numbers for each, averaged over rounds.

Of each round, from the Gram matrix K_t of its updates:

    length      log ‖u_i‖
    outside     log of the length of u_i's part outside the span of all other updates of the round
    cosines     c_ij, between the updates of i and j
    nearness    log10 of ‖u_i - u_j‖ / √(‖u_i‖² + ‖u_j‖²), that of copies cut off at 1e-6

lengths and nearness against the median of the round, cosines against its mean, so that it does not matter
which rounds a client took part in. From their means over rounds, for any set of clients most of whom met:

    agreement   the mean of c_ij over the others of the set
    apart       the leading coordinate of the clients in the matrix of c_ij: two groups that agree within
                more than across lie at its two ends

Lengths grow with the number of examples; what follows from that (Theil and Sen's slope) is taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.detect.leading import leading_pair
from fedcrab.detect.pairs import beside_mean, cosines_of, log_unexplained, nearness_of
from fedcrab.history.entries import RoundEntry
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

SLOPES = 300  # clients whose pairs tell how length grows with examples
MET = 0.5  # of all pairs must have met, or groups are those of the rounds that they met in
MOST_PAIRED = 2000  # clients of whom every pair is followed through the rounds


@dataclass(frozen=True, slots=True)
class Signals:
    """Means over rounds. NaN where a client, or a pair of them, took part in none."""

    examples: Matrix64  # log
    length: Matrix64
    outside: Matrix64  # NaN where rounds are sketched: the sketches of many clients span everything
    agreement: Matrix64  # with all of the round
    cosines: Matrix64  # (clients, clients), NaN on the diagonal; empty where there are too many clients
    nearness: Matrix64  # (clients, clients), NaN on the diagonal; empty too

    def among(self, some: NDArray[np.intp]) -> dict[str, Matrix64]:
        """The signals of these clients, judged among themselves."""
        found = {
            "length": _beside(self.length[some], self.examples[some]),
            "outside": _beside(self.outside[some], self.examples[some]),
        }
        cosines = self.cosines[np.ix_(some, some)] if self.cosines.size else self.cosines
        if not (cosines.size and np.isfinite(cosines).mean() > MET):
            return {**found, "agreement": self.agreement[some]}
        return {**found, "agreement": _row_means(cosines), "apart": leading(cosines)}


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over some rounds, and how many there were of each; those of other rounds can be added."""

    alone: Matrix64  # (sum and count, number, clients)
    pairs: Matrix64  # (cosine and nearness, clients, clients)
    met: Matrix64  # (clients, clients): in how many rounds

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.alone + other.alone, self.pairs + other.pairs, self.met + other.met)

    def signals(self) -> Signals:
        """The means."""
        met = self.met.copy()
        np.fill_diagonal(met, 0)
        both = (_means(np.stack([total, met])) for total in self.pairs)
        return Signals(*_means(self.alone), *both)


def gather(entries: Sequence[RoundEntry], clients: Sequence[ClientId]) -> Totals:
    """The sums of these clients over these rounds, in one pass."""
    place = {client: i for i, client in enumerate(clients)}
    paired = len(clients) if len(clients) <= MOST_PAIRED else 0
    square = (paired, paired)
    totals = Totals(np.zeros((2, 4, len(clients))), np.zeros((2, *square)), np.zeros(square))
    for entry in entries:
        at = np.array([place[client] for client in entry.clients], np.intp)
        there, cosines = cosines_of(entry)
        _add(totals.alone, (slice(None), at), _of_each(entry, there, cosines))
        if paired and len(there) > 1:
            _add_pairs(totals, at[there], beside_mean(cosines), nearness_of(entry.norms[there], cosines))
    return totals


def _add(totals: Matrix64, where: tuple[Any, ...], values: Matrix64) -> None:
    """Add the finite ones of these values, and count them."""
    known = np.isfinite(values)
    sums, counts = totals
    sums[where] += np.where(known, values, 0.0)
    counts[where] += known


def _add_pairs(totals: Totals, at: NDArray[np.intp], *values: Matrix64) -> None:
    """Add what was measured of each pair of these clients; all of them at once where that is everybody."""
    everybody = np.array_equal(at, np.arange(len(totals.met)))
    where: Any = slice(None) if everybody else np.ix_(at, at)
    for total, value in zip(totals.pairs, values, strict=True):
        total[where] += value
    totals.met[where] += 1


def _means(totals: Matrix64) -> Matrix64:
    return np.asarray(
        np.divide(totals[0], totals[1], out=np.full_like(totals[0], np.nan), where=totals[1] > 0)
    )


def _of_each(entry: RoundEntry, there: NDArray[np.intp], cosines: Matrix64) -> Matrix64:
    """Log examples, length, outside and agreement of each client of a round; NaN for who sent nothing."""
    found = np.full((4, len(entry.clients)), np.nan)
    found[0] = np.log(entry.examples)
    if len(there):
        length = np.log(entry.norms[there])
        outside = length if entry.coordinates.sketched else length + log_unexplained(cosines)
        found[1, there] = length - np.median(length)
        found[2, there] = outside - np.median(outside)
    if entry.coordinates.sketched:
        found[2] = np.nan
    if len(there) > 1:
        found[3, there] = beside_mean(cosines).sum(axis=1) / (len(there) - 1)
    return found


def _row_means(matrix: Matrix64) -> Matrix64:
    """The mean of each row's finite numbers; NaN where there is none."""
    known = np.isfinite(matrix)
    return _means(np.stack([np.where(known, matrix, 0.0).sum(axis=1), known.sum(axis=1)]))


def _beside(values: Matrix64, examples: Matrix64) -> Matrix64:
    """What is left of these numbers when their slope over the examples, from 0 to 1, is taken off."""
    known = np.flatnonzero(np.isfinite(values))[:SLOPES]
    first, second = np.triu_indices(len(known), 1)
    run = examples[known][first] - examples[known][second]
    far = np.abs(run) > 0.1
    if far.sum() < 10:
        return values
    rise = values[known][first] - values[known][second]
    return np.asarray(values - np.clip(np.median(rise[far] / run[far]), 0.0, 1.0) * examples)


def leading(cosines: Matrix64) -> Matrix64:
    """√λ·v of the leading eigenvalue and vector of the doubly centred matrix; what is not known is usual."""
    known = np.isfinite(cosines)
    if not known.any():
        return np.full(len(cosines), np.nan)
    filled = np.where(known, cosines - cosines[known].mean(), 0.0)
    centred = filled - filled.mean(axis=0) - filled.mean(axis=1)[:, None] + filled.mean()
    value, vector = leading_pair(centred)
    return np.asarray(np.sqrt(max(value, 0.0)) * vector)
