"""When they began: the round from which on named clients stand apart from the others, from the ledger alone.

In round t let U be the named participants, B the others, f(S) = Σ q_c² over a set's shares of its own mean,
σ² the mean squared distance of an update of B from their mean. If the named are like the others,

    r_t(U) = ‖mean of U - mean of B‖² / (σ²·(f(U) + f(B)))     is about 1.

The same ratio of groups g of the others, drawn by seed and as large as U, against the rest of B, shows how
far honest clients stray from 1; log r_t(U), less the groups' mean and over their deviation, is z_t. A
cumulative sum C_t = max(0, C_{t-1} + min(z_t, MOST) - drift) grows where U stands apart round after round
(Page, "Continuous inspection schemes", Biometrika 1954). Drift and threshold are set by the groups' own sums:
the drift is above what honest groups have on average, the threshold above what the sum of any of them
reached. The round where the sum that crosses it left 0 is the onset.

It is advice, never a decision: who mimics honest updates has no visible onset, and who was quiet first and
loud later has a visible one that is too late.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.history import History
from fedcrab.history.records import RoundRecord
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

GROUPS = 200  # of other clients, drawn by the history's seed
FEWEST = 4  # others in a round, to say what is usual among them
MOST_OTHERS = 300  # are looked at in a round, drawn by the history's seed
MOST = 10.0  # that one round counts for
LEAST_DRIFT, LEAST_THRESHOLD = 1.5, 6.0
MARGIN = 1.25  # the threshold above the groups' highest sum


@dataclass(frozen=True, slots=True)
class Onset:
    """From which round on the named clients visibly stand apart, or why that cannot be told."""

    round: int | None  # nothing is visible before it
    certain: int | None = None  # the round by which it is: they began between the two
    why: str = ""  # it cannot be told

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        return {"round": self.round, "certain": self.certain, "why": self.why}


def onset(history: History, malicious: Collection[ClientId]) -> Onset:
    """Estimate when these clients began, from the Gram matrices alone."""
    groups = _groups(history, frozenset(malicious))
    if groups is None:
        return Onset(None, why="too few other clients to say what is usual")
    ratios = np.array([_ratios(entry, groups) for entry in history.rounds])
    z = _standardised(ratios)
    if not np.isfinite(z[:, 0]).any():
        return Onset(None, why="they took part in no round with enough others")
    usual = np.nanmean(z[:, 1:], axis=0, where=np.isfinite(z[:, 1:])) if z.size else np.zeros(1)
    drift = max(LEAST_DRIFT, float(np.nanquantile(usual, 0.95)) + 0.5)
    sums = _sums(np.where(np.isfinite(z), np.minimum(z, MOST), 0.0) - np.where(np.isfinite(z), drift, 0.0))
    threshold = max(LEAST_THRESHOLD, MARGIN * float(sums[:, 1:].max()))
    return _crossing(sums[:, 0], np.isfinite(z[:, 0]), threshold)


@dataclass(frozen=True, slots=True)
class _Groups:
    """The named clients first, then groups of as many others; a group leaves the named out of its rest."""

    named: frozenset[ClientId]
    others: Mapping[ClientId, int]  # column of each other client
    member: NDArray[np.bool_]  # (groups, others)


def _groups(history: History, named: frozenset[ClientId]) -> _Groups | None:
    others = [client for client in history.clients if client not in named]
    rng = rng_for(history.charter.seed, "onset")
    if len(others) > MOST_OTHERS:
        others = sorted(others[i] for i in rng.permutation(len(others))[:MOST_OTHERS])
    if len(others) < FEWEST:
        return None
    size = max(1, min(len(named & {*history.clients}), len(others) // 2))
    member = np.zeros((GROUPS, len(others)), bool)
    for row in member:
        row[rng.permutation(len(others))[:size]] = True
    return _Groups(named, {client: column for column, client in enumerate(others)}, member)


def _ratios(entry: RoundRecord, groups: _Groups) -> Matrix64:
    """Log r of the named clients, then of each group; nan where a group or its rest was not there."""
    bad = [place for place, client in enumerate(entry.clients) if client in groups.named]
    rest = [place for place, client in enumerate(entry.clients) if client in groups.others]
    found = np.full(1 + len(groups.member), np.nan)
    if len(rest) < FEWEST:
        return found
    points = entry.coordinates.rows([*rest, *bad])
    examples = entry.examples[[*rest, *bad]]
    honest = np.array([place < len(rest) for place in range(len(points))])
    mean = np.average(points[honest], axis=0, weights=examples[honest])
    spread = float(((points[honest] - mean) ** 2).sum(axis=1).mean()) * len(rest) / (len(rest) - 1)
    if not spread > 0:
        return found
    here = groups.member[:, [groups.others[entry.clients[place]] for place in rest]]
    inside = np.zeros((len(found), len(points)), bool)
    inside[0], inside[1:, : len(rest)] = ~honest, here
    outside = ~inside
    outside[:, len(rest) :] = False
    inner, outer = (side * examples for side in (inside, outside))
    there = inside.any(axis=1) & outside.any(axis=1)
    inner, outer = (side[there] / side[there].sum(axis=1, keepdims=True) for side in (inner, outer))
    apart = ((inner @ points - outer @ points) ** 2).sum(axis=1)
    expected = spread * ((inner**2).sum(axis=1) + (outer**2).sum(axis=1))
    found[there] = np.log(np.maximum(apart / expected, 1e-12))
    return found


def _standardised(ratios: Matrix64) -> Matrix64:
    """Z: each round's log ratios less the groups' mean, over their deviation."""
    groups = ratios[:, 1:]
    there = np.isfinite(groups)
    count = np.maximum(there.sum(axis=1, keepdims=True), 1)
    mean = np.where(there, groups, 0.0).sum(axis=1, keepdims=True) / count
    deviation = np.sqrt(np.where(there, (groups - mean) ** 2, 0.0).sum(axis=1, keepdims=True) / count)
    enough = (there.sum(axis=1, keepdims=True) >= GROUPS // 4) & (deviation > 0)
    result: Matrix64 = np.where(enough, (ratios - mean) / np.where(enough, deviation, 1.0), np.nan)
    return result


def _sums(steps: Matrix64) -> Matrix64:
    """C_t = max(0, C_{t-1} + step), a column a group."""
    sums, now = np.zeros_like(steps), np.zeros(steps.shape[1])
    for row, step in zip(sums, steps, strict=True):
        now = np.maximum(0.0, now + step)
        row[:] = now
    return sums


def _crossing(sums: Matrix64, there: NDArray[np.bool_], threshold: float) -> Onset:
    """The first sum above the threshold, back to where it left 0."""
    above = np.flatnonzero(sums > threshold)
    if not len(above):
        return Onset(None, why="their updates do not visibly differ from those of the others")
    certain = int(above[0])
    begin = certain
    while begin > 0 and (sums[begin - 1] > 0 or not there[begin]):
        begin -= 1
    return Onset(begin, certain)
