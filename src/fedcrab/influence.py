"""How far clients moved the model: from the geometry in the ledger, without one update vector.

For a set S of clients, I(S) is what S moved the model by. In a counted round the malicious clients' part
is s = ‖I(all) - I(honest)‖, measured against φ = ‖I(honest)‖.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedcrab.history import History
from fedcrab.history.entries import RoundEntry
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64


@dataclass(frozen=True, slots=True)
class Counted:
    """A round that counts: which of its clients, their shares of the mean, and the mean itself."""

    entry: RoundEntry
    members: NDArray[np.intp]  # places among the round's clients
    shares: Matrix64  # p_c over the members
    mean: Matrix64  # coordinates of Σ p_c·u_c
    against: Matrix64 | None  # coordinates of the vector that the influence is measured against


@dataclass(frozen=True, slots=True)
class Influence:
    """What the malicious clients did in one round."""

    sensitivity: float  # s
    honest: float  # φ
    parts: Mapping[ClientId, float]  # each malicious client's part of s; they add up to s


_Cached = dict[tuple[str, str], list[Counted]]
_CACHE: WeakKeyDictionary[History, _Cached] = WeakKeyDictionary()


def counted_rounds(history: History, evidence: str) -> Sequence[Counted]:
    """The rounds that this kind of evidence counts, prepared for any malicious set."""
    cached = _CACHE.setdefault(history, {})
    key = evidence, history.contents.head
    if key not in cached:
        for old in [k for k in cached if k[1] != key[1]]:
            del cached[old]
        cached[key] = _stored(history) if evidence == "stored" else _all(history)
    return cached[key]


def _all(history: History) -> list[Counted]:
    """Every round, every participant, measured against standing still."""
    return [_count(entry, np.arange(len(entry.clients)), None) for entry in history.rounds]


def _stored(history: History) -> list[Counted]:
    """The kept rounds, the selected clients, measured against the mean of the kept round before."""
    rounds, previous = [], None
    for index in history.kept:
        entry = history.rounds[index]
        rounds.append(_count(entry, np.flatnonzero(entry.selected), previous))
        previous = index
    return rounds


def _count(entry: RoundEntry, members: NDArray[np.intp], previous: int | None) -> Counted:
    weights = entry.examples[members]
    shares = weights / weights.sum() if len(members) else weights
    against = None
    if previous is not None:
        point = len(entry.clients) + entry.references.index(previous)
        against = entry.coordinates.combine([point], [1.0])
    return Counted(entry, members, shares, entry.coordinates.combine(members.tolist(), shares), against)


def influence(counted: Counted, malicious: Collection[ClientId]) -> Influence:
    """s, φ and each malicious client's part, for one round."""
    names = counted.entry.clients
    bad = [i for i, place in enumerate(counted.members.tolist()) if names[place] in malicious]
    zero = counted.against if counted.against is not None else np.zeros_like(counted.mean)
    if not bad:
        return Influence(0.0, _length(counted.mean - zero) if len(counted.members) else 0.0, {})
    rows = _rows(counted, bad)
    honest_mean = _honest_mean(counted, bad, rows)
    goal = zero if honest_mean is None else honest_mean
    steps = counted.shares[bad, None] * (rows - goal)
    moved = steps.sum(axis=0)
    parts = _parts([names[counted.members[i]] for i in bad], steps, moved)
    honest = 0.0 if honest_mean is None else _length(honest_mean - zero)
    return Influence(_length(moved), honest, parts)


def _rows(counted: Counted, bad: Sequence[int]) -> Matrix64:
    rows = np.zeros((len(bad), len(counted.mean)))
    for row, i in zip(rows, bad, strict=True):
        coordinates = counted.entry.coordinates.row(int(counted.members[i]))
        row[: len(coordinates)] = coordinates
    return rows


def _honest_mean(counted: Counted, bad: Sequence[int], rows: Matrix64) -> Matrix64 | None:
    """The honest members' mean: from the mean of all where that is accurate, else from their own rows."""
    honest = np.ones(len(counted.members), bool)
    honest[list(bad)] = False
    total = float(counted.shares[honest].sum())
    if not honest.any():
        return None
    if total >= 0.5:
        away = counted.shares[bad] @ (rows - counted.mean)
        return np.asarray(counted.mean - away / total)
    shares = counted.shares[honest] / total
    return counted.entry.coordinates.combine(counted.members[honest].tolist(), shares)


def _parts(names: Sequence[ClientId], steps: Matrix64, moved: Matrix64) -> dict[ClientId, float]:
    """Each client's step along the direction in which the model was moved: ⟨e_c, Σe⟩ / ‖Σe‖."""
    length = _length(moved)
    if length == 0:
        return dict.fromkeys(names, 0.0)
    return dict(zip(names, (steps @ moved / length).tolist(), strict=True))


def _length(coordinates: Matrix64) -> float:
    return float(np.linalg.norm(coordinates))
