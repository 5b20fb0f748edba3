"""How far named clients stand apart in each round: from the others, and from what they sent before.

Column 0 of every table belongs to the named clients U, the other columns to groups of the others that are as
large as U. The groups show what is usual among clients that nobody accuses.

**Level.** In round t let B be the others, f(S) = Σ q_c² over a set's shares of its own mean, σ² the mean
squared distance of an update of B from their mean. If U are like the others,

    r_t(U) = ‖mean of U - mean of B‖² / (σ²·(f(U) + f(B)))     is about 1.

The level of U is log r_t(U), less the groups' mean and over their deviation.

**Jump.** Uneven data set a client apart from the start; what it changes is visible beside its own past. Three
numbers are followed: the length of each client's update and its distance from the mean of the others, both as
logarithms less the others' median, and log r_t of the set. Each is taken less the median of its own earlier
rounds, over their deviation (MAD); the first rounds, which have no past, are compared with the rounds after
them. A set's value is the sum over its clients over the root of their number, less the groups' mean and
over their deviation. The jump is the greatest of the three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrab.history.records import RoundRecord
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

FEWEST = 4  # others in a round, to say what is usual among them
LEAST_PAST, MOST_PAST = 4, 60  # rounds that a round is compared with
AS_DEVIATION = 1.4826  # times the MAD of normal numbers
SMALLEST = 1e-12  # below it a squared distance counts as this


@dataclass(frozen=True, slots=True)
class Groups:
    """The named clients and the others, and groups of as many others as are named."""

    named: Mapping[ClientId, int]  # column of each named client, after those of the others
    others: Mapping[ClientId, int]  # column of each other client
    member: NDArray[np.bool_]  # (groups, others)

    @property
    def sets(self) -> NDArray[np.bool_]:
        """(1 + groups, others + named): the named clients first, then the groups."""
        count, others = self.member.shape
        sets = np.zeros((1 + count, others + len(self.named)), bool)
        sets[0, others:], sets[1:, :others] = True, self.member
        return sets


@dataclass(frozen=True, slots=True)
class Signals:
    """What is measured of each round; nan for who was not there."""

    ratios: Matrix64  # (rounds, 1 + groups): log r
    lengths: Matrix64  # (rounds, others + named): log ‖u‖, less the others' median
    distances: Matrix64  # the same of the distance from the others' mean

    @classmethod
    def of(cls, rounds: Sequence[RoundRecord], groups: Groups) -> Signals:
        """Measure every round, from the Gram matrices alone."""
        rows = [measured(entry, groups) for entry in rounds]
        return cls(*(np.array(table) for table in zip(*rows, strict=True)))

    def levels(self) -> Matrix64:
        """(rounds, 1 + groups): how far each set stands apart from the others."""
        return _beside_groups(self.ratios)

    def jumps(self, groups: Groups) -> Matrix64:
        """(rounds, 1 + groups): how far each set stands apart from its own past."""
        others = slice(0, len(groups.others))
        sets = groups.sets.astype(float)
        lengths, has_past = _beside_past(self.lengths, others)
        distances, _ = _beside_past(self.distances, others)
        ratios, _ = _beside_past(self.ratios, slice(1, None))
        longer = _of_sets(lengths, sets)
        shorter = _of_sets(np.where(has_past, -lengths, np.nan), sets)
        parts = (longer, shorter, _of_sets(distances, sets), ratios)
        beside = [_beside_groups(part, least=1.0) for part in parts]
        return np.asarray(np.fmax.reduce(beside))


def measured(entry: RoundRecord, groups: Groups) -> tuple[Matrix64, Matrix64, Matrix64]:
    """A round's row of each table of :class:`Signals`."""
    columns = {**groups.others, **groups.named}
    here = [place for place, client in enumerate(entry.clients) if client in columns]
    at = np.array([columns[entry.clients[place]] for place in here], np.intp)
    honest = at < len(groups.others)
    ratios, lengths, distances = (
        np.full(size, np.nan) for size in (1 + len(groups.member), len(columns), len(columns))
    )
    if honest.sum() < FEWEST:
        return ratios, lengths, distances
    points, examples = entry.coordinates.rows(here), entry.examples[here]
    mean = np.average(points[honest], axis=0, weights=examples[honest])
    squares = ((points - mean) ** 2).sum(axis=1)
    spread = float(squares[honest].mean()) * honest.sum() / (honest.sum() - 1)
    if not spread > 0:
        return ratios, lengths, distances
    # The mean without a client itself is further from it by this.
    share = np.where(honest, examples / examples[honest].sum(), 0.0)
    far = np.log(np.maximum(squares / (1 - share) ** 2, SMALLEST)) / 2
    long = np.log(np.maximum(entry.norms[here], SMALLEST))
    lengths[at], distances[at] = long - np.median(long[honest]), far - np.median(far[honest])
    ratios[:] = _ratios(points, examples, honest, groups.sets[:, at], spread)
    return ratios, lengths, distances


def _ratios(
    points: Matrix64, examples: Matrix64, honest: NDArray[np.bool_], sets: NDArray[np.bool_], spread: float
) -> Matrix64:
    """Log r of each set against the others that are not in it; nan where either was not there."""
    found = np.full(len(sets), np.nan)
    inside, outside = sets * examples, (honest & ~sets) * examples
    there = inside.any(axis=1) & outside.any(axis=1)
    inner, outer = (side[there] / side[there].sum(axis=1, keepdims=True) for side in (inside, outside))
    apart = ((inner @ points - outer @ points) ** 2).sum(axis=1)
    expected = spread * ((inner**2).sum(axis=1) + (outer**2).sum(axis=1))
    found[there] = np.log(np.maximum(apart / expected, SMALLEST))
    return found


def _beside_past(table: Matrix64, usual: slice) -> tuple[Matrix64, NDArray[np.bool_]]:
    """Each number less the median of its column's past, over its deviation; and whether it has a past.

    The deviation is joined with the median of that of the ``usual`` columns: few rounds may be alike by luck.
    """
    found, has_past = np.full_like(table, np.nan), np.zeros(table.shape, bool)
    for t, row in enumerate(table):
        past, later = table[max(0, t - MOST_PAST) : t], table[t + 1 : t + 1 + MOST_PAST]
        has_past[t] = np.isfinite(past).sum(axis=0) >= LEAST_PAST
        for rounds, which in ((past, has_past[t]), (later, ~has_past[t])):
            which = which & (np.isfinite(rounds).sum(axis=0) >= LEAST_PAST)
            if not which.any():
                continue
            middle = median_of_columns(rounds)
            deviation = AS_DEVIATION * median_of_columns(np.abs(rounds - middle))
            known = deviation[usual][which[usual]]
            scale = np.hypot(deviation, np.median(known) if len(known) else 0.0)
            which &= scale > 0
            found[t, which] = (row[which] - middle[which]) / scale[which]
    return found, has_past


def median_of_columns(table: Matrix64) -> Matrix64:
    """The median of the finite numbers of each column; nan where there are none."""
    ordered = np.sort(table, axis=0)  # nan last
    count = np.isfinite(ordered).sum(axis=0)
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(ordered) - 1)
    pair = [np.take_along_axis(ordered, place[None], axis=0)[0] for place in (low, high)]
    return np.asarray((pair[0] + pair[1]) / 2)


def _of_sets(table: Matrix64, sets: Matrix64) -> Matrix64:
    """Σ over a set's clients over the root of their number, of those that have a value."""
    there = np.isfinite(table)
    count = there @ sets.T
    sums = np.where(there, table, 0.0) @ sets.T
    return np.asarray(np.where(count > 0, sums / np.sqrt(np.maximum(count, 1)), np.nan))


def _beside_groups(table: Matrix64, *, least: float = 0.0) -> Matrix64:
    """Each round's numbers less the groups' mean, over their deviation, which is ``least`` or more."""
    groups = table[:, 1:]
    there = np.isfinite(groups)
    count = np.maximum(there.sum(axis=1, keepdims=True), 1)
    mean = np.where(there, groups, 0.0).sum(axis=1, keepdims=True) / count
    deviation = np.sqrt(np.where(there, (groups - mean) ** 2, 0.0).sum(axis=1, keepdims=True) / count)
    deviation = np.maximum(deviation, least)
    enough = (there.sum(axis=1, keepdims=True) >= groups.shape[1] // 4) & (deviation > 0)
    result: Matrix64 = np.where(enough, (table - mean) / np.where(enough, deviation, 1.0), np.nan)
    return result
