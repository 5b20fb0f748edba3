"""The rollback decision: how far the poison reaches, and the last model it has not reached.

Crab's adaptive rollback. For a kept round t_j, S(j) = Σ s_t and Φ(j) = β·Σ φ_t over the counted rounds
t < t_j. Departures from the paper: Φ is a sum of norms (the paper prints a vector); evidence ``all`` and
rule ``prefix`` exist beside the paper's ``stored`` and ``last``, because attackers whom the cosine
selection leaves out have S = 0 under ``stored`` and are then not rolled back at all; ``unfound`` counts
attackers beyond those named (:mod:`fedcrab.unfound`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from fedcrab.caveats import SENTENCES, caveats, listed
from fedcrab.errors import ConfigError, HistoryError
from fedcrab.history import History
from fedcrab.influence import Influence, evidence_of
from fedcrab.types import ClientId
from fedcrab.unfound import hedged, how_many
from fedcrab.vectors import Matrix64

EVIDENCE = ("all", "stored")
RULES = ("prefix", "last")
SETTINGS = ("malicious", "beta", "evidence", "rule")  # of every decision; `unfound` beside them, if any
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "hardened": {"beta": 0.3, "evidence": "all", "rule": "prefix"},
    "paper": {"beta": 0.3, "evidence": "stored", "rule": "last"},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision, and all that it rests on. Nothing is run by it."""

    history: History = field(repr=False)
    malicious: tuple[ClientId, ...]
    beta: float
    evidence: str
    rule: str
    candidates: tuple[int, ...]  # t_j: the rounds that can be rolled back to
    sensitivity: tuple[float, ...]  # S(j)
    threshold: tuple[float, ...]  # Φ(j)
    index: int  # j*
    model: str  # the hash of M_{t_j*}
    replay: tuple[tuple[int, tuple[ClientId, ...]], ...]  # (round, honest selected clients)
    cost: Mapping[str, float]
    shares: Mapping[ClientId, float]  # each malicious client's share of all the sensitivity there is
    warnings: tuple[str, ...]
    unfound: int = 0  # so many of the others may be malicious too: S and Φ are bounds over all choices

    @property
    def rollback_round(self) -> int:
        """t_j*: recovery starts from the model before this round."""
        return self.candidates[self.index]

    def decision(self) -> dict[str, Any]:
        """What :func:`plan` was asked, as plain values; ``unfound`` only where there is any."""
        hedge = {"unfound": self.unfound} if self.unfound else {}
        asked = {name: getattr(self, name) for name in SETTINGS}
        return {**asked, "malicious": list(self.malicious), **hedge}

    def to_table(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            **self.decision(),
            "candidates": list(self.candidates),
            "sensitivity": list(self.sensitivity),
            "threshold": list(self.threshold),
            "index": self.index,
            "rollback_round": self.rollback_round,
            "model": self.model,
            "replay": [[t, list(clients)] for t, clients in self.replay],
            "cost": dict(self.cost),
            "shares": dict(self.shares),
            "warnings": list(self.warnings),
        }


def plan(
    history: History,
    malicious: Collection[ClientId],
    beta: float = 0.3,
    evidence: str = "all",
    rule: str = "prefix",
    unfound: float | str = 0,
) -> Plan:
    """Decide how far to roll back once these clients are known to be malicious.

    A larger ``beta`` tolerates more poison: 0 rolls back to the last model that no attacker has touched.
    ``unfound`` is how many of the others may be malicious without anybody knowing, or what share of all
    clients (0.2 or "20%"): the rollback then goes at least as far as for any choice of so many, named.
    """
    bad = _check(history, malicious, beta, evidence, rule)
    more = how_many(unfound, len(history.clients), len(bad & {*history.clients}))
    counted = evidence_of(history, evidence)
    named = counted.influence(bad)
    found = hedged(counted, bad, named, more) if more else named
    candidates = history.kept or (0,)
    sensitivity = _sums_before(candidates, found.rounds, found.sensitivity)
    threshold = [beta * total for total in _sums_before(candidates, found.rounds, found.honest)]
    index = _decide(sensitivity, threshold, rule)
    replay = _replay(history, candidates[index:], bad)
    return Plan(
        history=history,
        malicious=tuple(sorted(bad)),
        beta=float(beta),
        evidence=evidence,
        rule=rule,
        candidates=tuple(candidates),
        sensitivity=tuple(sensitivity),
        threshold=tuple(threshold),
        index=index,
        model=history.rounds[candidates[index]].start,
        replay=replay,
        cost=_cost(history, replay, bad),
        shares=_shares(named),
        warnings=(*_of_unfound(more), *caveats(history, bad, evidence, candidates[index], replay)),
        unfound=more,
    )


def _check(
    history: History, malicious: Collection[ClientId], beta: float, evidence: str, rule: str
) -> frozenset[ClientId]:
    if evidence not in EVIDENCE or rule not in RULES:
        raise ConfigError(
            f"evidence is one of {', '.join(EVIDENCE)} and rule one of {', '.join(RULES)}; "
            f"got {evidence!r} and {rule!r}"
        )
    if isinstance(beta, bool) or not isinstance(beta, int | float) or not isfinite(beta) or beta < 0:
        raise ConfigError(f"beta must be a number of 0 or more, got {beta!r}")
    if not history.rounds:
        raise HistoryError(f"{history.path}: no round has been recorded, there is nothing to roll back")
    bad = frozenset([malicious] if isinstance(malicious, str) else malicious)
    clients = set(history.clients)
    if not bad:
        raise ConfigError("no malicious client is named; name at least one")
    if unknown := bad - clients - _turned_away(history):
        raise ConfigError(f"{history.path}: no client {listed(unknown)} in this history{_hint(clients)}")
    if bad >= clients:
        raise ConfigError(f"all {len(clients)} clients are named malicious; nobody is left to recover with")
    return bad


def _turned_away(history: History) -> set[ClientId]:
    return {r.client for entry in history.rounds for r in entry.rejected}


def _hint(clients: Collection[ClientId]) -> str:
    return f"; it has {listed(clients)}" if len(clients) <= 30 else f"; it has {len(clients)} others"


def _sums_before(candidates: Sequence[int], rounds: Sequence[int], values: Matrix64) -> list[float]:
    """For each candidate the sum over the rounds strictly before it."""
    totals = [0.0, *np.cumsum(values).tolist()]
    return [totals[bisect_left(rounds, candidate)] for candidate in candidates]


def _decide(sensitivity: Sequence[float], threshold: Sequence[float], rule: str) -> int:
    """j*: ``last`` takes the largest j with S(j) ≤ Φ(j), ``prefix`` the last before the first excess."""
    within = [s <= phi for s, phi in zip(sensitivity, threshold, strict=True)]
    if rule == "last":
        return max(j for j, fine in enumerate(within) if fine)
    return within.index(False) - 1 if False in within else len(within) - 1


def _replay(
    history: History, rounds: Sequence[int], bad: Collection[ClientId]
) -> tuple[tuple[int, tuple[ClientId, ...]], ...]:
    entries = [history.rounds[t] for t in rounds]
    return tuple(
        (e.index, tuple(c for c, s in zip(e.clients, e.selected, strict=True) if s and c not in bad))
        for e in entries
    )


def _cost(
    history: History, replay: Sequence[tuple[int, Sequence[ClientId]]], bad: Collection[ClientId]
) -> dict[str, float]:
    """Client-rounds of the replay, beside those of training again from scratch."""
    ours = sum(len(clients) for _, clients in replay)
    scratch = sum(c not in bad for entry in history.rounds for c in entry.clients)
    return {
        "rounds": sum(bool(clients) for _, clients in replay),
        "client_rounds": ours,
        "retrain_rounds": len(history.rounds),
        "retrain_client_rounds": scratch,
        "share_of_retrain": ours / scratch if scratch else 0.0,
    }


def _of_unfound(count: int) -> list[str]:
    return [SENTENCES["unfound"].format(count=count)] if count else []


def _shares(found: Influence) -> dict[ClientId, float]:
    """Each malicious client's part of the whole sensitivity, as a share of it."""
    total = float(found.sensitivity.sum())
    return {c: part / total if total > 0 else 0.0 for c, part in found.parts.items()}
