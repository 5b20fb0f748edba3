"""When they began: the first round in which named clients visibly differ, from the ledger alone.

Two signals per round (onset_signals.py): the level, how far the named clients stand apart from the others,
and the jump, how far they stand apart from their own earlier rounds. For a client that is already named the
only question is since when, so that a change beside its own past is evidence. A single act is enough if it is
large; several small ones add up. For each signal z_t a cumulative sum

    C_t = max(0, C_{t-1} + min(z_t, MOST) - drift)        (Page, "Continuous inspection schemes", 1954)

grows where the named clients stand apart. The same sums of groups of the others set drift and threshold: the
drift is above what groups have on average, the threshold above what any of their sums reached. The sum that
crosses its threshold first gives the onset: the round where it left 0, or the crossing itself if that round
alone is enough. Where small differences crossed it and a later round is enough alone, that round is the one
by which it is certain: uneven data add up too.

It is advice, never a decision. Who mimics honest updates has no visible onset. Who was quiet first and loud
later has a visible one that is too late. What is offered as ``since`` is therefore EARLIER rounds before it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcrab.history import History
from fedcrab.rollback.onset_signals import FEWEST, Groups, Signals
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

GROUPS = 200  # of other clients, drawn by the history's seed
MOST_OTHERS = 300  # are looked at in a round, drawn by the history's seed
MOST = 50.0  # that one round counts for
LEAST_DRIFT, LEAST_THRESHOLD = 1.5, 10.0
MARGIN = 1.25  # the threshold above the groups' highest sum
EARLIER = 2  # rounds before the onset from which recovery is offered: a first act can be too small to see


@dataclass(frozen=True, slots=True)
class Onset:
    """From which round on the named clients visibly stand apart, or why that cannot be told."""

    round: int | None  # nothing is visible before it
    certain: int | None = None  # the round by which it is: they began between the two
    why: str = ""  # it cannot be told

    @property
    def since(self) -> int | None:
        """The round to offer as ``since`` to somebody who knows that they were honest at first."""
        return None if self.round is None else max(0, self.round - EARLIER)

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        return {"round": self.round, "certain": self.certain, "since": self.since, "why": self.why}


def onset(history: History, malicious: Collection[ClientId]) -> Onset:
    """Estimate when these clients began, from the Gram matrices alone."""
    groups = _groups(history, frozenset(malicious))
    if groups is None:
        return Onset(None, why="too few other clients to say what is usual")
    signals = Signals.of(history.rounds, groups)
    levels = signals.levels()
    if not np.isfinite(levels[:, 0]).any():
        return Onset(None, why="they took part in no round with enough others")
    crossings = [
        found for found in (_crossing(signals.jumps(groups)), _crossing(levels)) if found is not None
    ]
    if not crossings:
        return Onset(None, why="their updates do not visibly differ from those of the others")
    begin, certain, _ = min(crossings, key=lambda found: found[1])
    clear = [alone for *_, alone in crossings if alone is not None]
    return Onset(begin, max(certain, min(clear, default=certain)))


def _groups(history: History, named: frozenset[ClientId]) -> Groups | None:
    others = [client for client in history.clients if client not in named]
    rng = rng_for(history.charter.seed, "onset")
    if len(others) > MOST_OTHERS:
        others = sorted(others[i] for i in rng.permutation(len(others))[:MOST_OTHERS])
    if len(others) < FEWEST:
        return None
    there = [client for client in history.clients if client in named]
    size = max(1, min(len(there), len(others) // 2))
    member = np.zeros((GROUPS, len(others)), bool)
    for row in member:
        row[rng.permutation(len(others))[:size]] = True
    columns = {client: column for column, client in enumerate([*others, *there])}
    return Groups({c: columns[c] for c in there}, {c: columns[c] for c in others}, member)


def _crossing(z: Matrix64) -> tuple[int, int, int | None] | None:
    """Where the sum of column 0 left 0, where it crossed its threshold, and the first round enough alone."""
    there = np.isfinite(z)
    count = np.maximum(there.sum(axis=0), 1)
    usual = np.where(there, z, 0.0).sum(axis=0)[1:] / count[1:]
    drift = max(LEAST_DRIFT, float(np.quantile(usual, 0.95)) + 0.5)
    sums = _sums(np.where(there, np.minimum(z, MOST) - drift, 0.0))
    threshold = max(LEAST_THRESHOLD, MARGIN * float(sums[:, 1:].max(initial=0.0)))
    above = np.flatnonzero(sums[:, 0] > threshold)
    if not len(above):
        return None
    certain = begin = int(above[0])
    while begin > 0 and z[certain, 0] <= threshold and (sums[begin - 1, 0] > 0 or not there[begin, 0]):
        begin -= 1
    alone = np.flatnonzero(there[:, 0] & (z[:, 0] > threshold))
    return begin, certain, int(alone[0]) if len(alone) else None


def _sums(steps: Matrix64) -> Matrix64:
    """C_t = max(0, C_{t-1} + step), one column per group."""
    sums, now = np.zeros_like(steps), np.zeros(steps.shape[1])
    for row, step in zip(sums, steps, strict=True):
        now = np.maximum(0.0, now + step)
        row[:] = now
    return sums
