"""The rollback decision: how far the poison reaches, and the last model that it has not reached.

Crab's adaptive rollback. For a kept round t_j, S(j) = Σ s_t and Φ(j) = β·Σ φ_t over the counted rounds
t < t_j. Departures from the paper:

- Φ is a sum of norms (the paper prints a vector).
- Evidence ``all`` and rule ``prefix`` exist besides the paper's ``stored`` and ``last``. Under ``stored``,
  attackers that the cosine selection leaves out have S = 0 and cause no rollback.
- ``since`` is the round from which a named client counts as malicious.
- ``unfound`` allows for undetected attackers (:mod:`fedcrab.rollback.undetected`).
- β is 0 by default: a backdoor needs little movement to survive.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import isfinite
from typing import Any

import numpy as np

from fedcrab.errors import ConfigError, HistoryError
from fedcrab.history import History
from fedcrab.html import html_pairs, html_rows
from fedcrab.rollback.influence import Influence, counted_rounds
from fedcrab.rollback.malicious import join_quoted
from fedcrab.rollback.undetected import undetected_count, with_undetected
from fedcrab.rollback.warnings import SENTENCES, Left, join_ids, plan_warnings
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

EVIDENCE = ("all", "stored")
RULES = ("prefix", "last")
SETTINGS = ("malicious", "beta", "evidence", "rule")  # every decision has these
OPTIONAL = ("since", "unfound")  # a decision has these only if they were given
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "hardened": {"beta": 0.0, "evidence": "all", "rule": "prefix"},
    "paper": {"beta": 0.3, "evidence": "stored", "rule": "last"},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A rollback decision and everything it is based on. It runs nothing."""

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
    shares: Mapping[ClientId, float]  # each malicious client's share of the total sensitivity
    warnings: tuple[str, ...]
    unfound: int = 0  # this many others may be malicious too: S and Φ are bounds over all choices
    since: Mapping[ClientId, int] = field(default_factory=dict)  # the round of each client; 0 if not given
    poison_left: float = 0.0  # the malicious clients' share of all movement in the rollback model

    @property
    def rollback_round(self) -> int:
        """t_j*: recovery starts from the model before this round."""
        return self.candidates[self.index]

    def __repr__(self) -> str:
        """Return a summary in one line."""
        return (
            f"Plan(without {join_ids(self.malicious)}: back to round {self.rollback_round} of "
            f"{len(self.history.rounds)}, {len(self.replay)} rounds to replay)"
        )

    def _repr_html_(self) -> str:
        facts = {
            "malicious": ", ".join(self.malicious),
            "roll back to round": f"{self.rollback_round} of {len(self.history.rounds)}",
            "evidence, rule, β": f"{self.evidence}, {self.rule}, {self.beta:g}",
            "poison left in it": f"{self.poison_left:.1%} of its movement",
            "rounds to replay": len(self.replay),
            "model": self.model,
        }
        heads, rows = ("client", "share of the poison"), [(c, f"{s:.1%}") for c, s in self.shares.items()]
        paragraphs = "".join(f"<p>! {escape(warning)}</p>" for warning in self.warnings)
        return html_pairs("Plan", facts, below=html_rows(heads, rows) + paragraphs)

    def is_malicious(self, client: ClientId, round: int) -> bool:
        """Return whether a client's update of a round counts as malicious: named, and from ``since`` on."""
        return client in self.malicious and round >= self.since.get(client, 0)

    def honest(self, round: int) -> tuple[ClientId, ...]:
        """Return the participants of a round whose stored updates count as honest."""
        return tuple(c for c in self.history.rounds[round].clients if not self.is_malicious(c, round))

    def askable(self, round: int) -> tuple[ClientId, ...]:
        """Return the participants of a round that may be asked again: never a named client."""
        return tuple(c for c in self.history.rounds[round].clients if c not in self.malicious)

    def decision(self) -> dict[str, Any]:
        """Return the arguments of :func:`plan` as plain values; ``since`` and ``unfound`` only if given."""
        asked = {name: getattr(self, name) for name in SETTINGS}
        more = {"since": dict(self.since), "unfound": self.unfound}
        return {**asked, "malicious": list(self.malicious), **{k: v for k, v in more.items() if v}}

    def to_table(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
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
            "poison_left": self.poison_left,
            "warnings": list(self.warnings),
        }


def plan(
    history: History,
    malicious: Collection[ClientId],
    beta: float = 0.0,
    evidence: str = "all",
    rule: str = "prefix",
    unfound: float | str = 0,
    since: int | Mapping[ClientId, int] | None = None,
) -> Plan:
    """Decide how far to roll back when these clients are known to be malicious.

    With ``beta`` 0, the default, the rollback goes to the last model that no named client has influenced. A
    larger beta tolerates poison, as a share of the honest clients' movement; the warnings say how much.
    ``evidence`` is ``all`` (every round and participant of the history counts) or ``stored`` (only kept
    rounds and selected clients, as in the paper). ``rule`` is ``prefix`` (the last record before S first
    exceeds Φ) or ``last`` (the last record with S ≤ Φ, as in the paper). ``PRESETS`` has both combinations.
    ``unfound`` allows for undetected attackers: a number of clients, or a share of all clients (0.2 or
    "20%"). The rollback then goes at least as far as if any such clients had been named. ``since`` is the
    round from which the named clients count as malicious, one for all or one per client (``{"3": 20}``).
    Earlier updates count as honest. Without it, every round counts.
    """
    bad = _check(history, malicious, beta, evidence, rule)
    start_rounds = _start_rounds(history, bad, since)
    more = undetected_count(unfound, len(history.clients), len(bad & {*history.clients}))
    counted, everything = counted_rounds(history, evidence, bad), counted_rounds(history, "all", bad)
    named = counted.influence(bad, start_rounds)
    found = with_undetected(counted, bad, named, more, start_rounds) if more else named
    candidates = history.kept or (0,)
    sensitivity = _sums_before(candidates, found.rounds, found.sensitivity)
    threshold = [beta * total for total in _sums_before(candidates, found.rounds, found.honest)]
    index = _decide(sensitivity, threshold, rule)
    replay = _replay(history, candidates[index:], bad)
    moved = named if evidence == "all" else everything.influence(bad, start_rounds)
    left = _left(history, bad, start_rounds, candidates, index, moved)
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
        warnings=(
            *_of_unfound(more),
            *plan_warnings(history, bad, evidence, replay, since=start_rounds, left=left),
        ),
        unfound=more,
        since=start_rounds,
        poison_left=left.share if left else 0.0,
    )


def _check(
    history: History, malicious: Collection[ClientId], beta: float, evidence: str, rule: str
) -> frozenset[ClientId]:
    if evidence not in EVIDENCE or rule not in RULES:
        raise ConfigError(
            f"evidence must be one of {', '.join(EVIDENCE)} and rule one of {', '.join(RULES)}; "
            f"got {evidence!r} and {rule!r}"
        )
    if isinstance(beta, bool) or not isinstance(beta, int | float) or not isfinite(beta) or beta < 0:
        raise ConfigError(f"beta must be a number of 0 or more, got {beta!r}")
    if not history.rounds:
        raise HistoryError(f"{history.path}: no round is recorded, so there is nothing to roll back")
    bad = frozenset([malicious] if isinstance(malicious, str) else malicious)
    clients = set(history.clients)
    if not bad:
        raise ConfigError("no malicious client is named; name at least one")
    if unknown := bad - clients - _turned_away(history):
        raise ConfigError(f"{history.path}: no client {join_quoted(unknown)} in this history{_hint(clients)}")
    if bad >= clients:
        raise ConfigError(f"all {len(clients)} clients are named malicious; nobody is left to recover with")
    return bad


def _start_rounds(
    history: History, bad: frozenset[ClientId], since: int | Mapping[ClientId, int] | None
) -> dict[ClientId, int]:
    """Return the round from which each named client is malicious, if that is not the first."""
    starts = dict(since) if isinstance(since, Mapping) else dict.fromkeys(bad, 0 if since is None else since)
    if unnamed := {*starts} - bad:
        raise ConfigError(f"since: {join_ids(unnamed)} is not named malicious")
    last = len(history.rounds) - 1
    for client, start in starts.items():
        if not isinstance(start, int) or isinstance(start, bool) or not 0 <= start <= last:
            raise ConfigError(
                f"since: client {client} cannot be malicious from round {str(start)[:40]} on; the "
                f"history has rounds 0 to {last}"
            )
    return {client: starts[client] for client in sorted(starts) if starts[client]}


def _turned_away(history: History) -> set[ClientId]:
    return {r.client for entry in history.rounds for r in entry.rejected}


def _hint(clients: Collection[ClientId]) -> str:
    return f"; it has {join_quoted(clients)}" if len(clients) <= 30 else f"; it has {len(clients)} others"


def _sums_before(candidates: Sequence[int], rounds: Sequence[int], values: Matrix64) -> list[float]:
    """Return, for each candidate, the sum over the rounds strictly before it."""
    totals = [0.0, *np.cumsum(values).tolist()]
    return [totals[bisect_left(rounds, candidate)] for candidate in candidates]


def _decide(sensitivity: Sequence[float], threshold: Sequence[float], rule: str) -> int:
    """Return j*: ``last`` is the largest j with S(j) ≤ Φ(j), ``prefix`` the last before any excess."""
    within = [s <= phi for s, phi in zip(sensitivity, threshold, strict=True)]
    if rule == "last":
        return max(j for j, fine in enumerate(within) if fine)
    return within.index(False) - 1 if False in within else len(within) - 1


def _left(
    history: History,
    bad: frozenset[ClientId],
    since: Mapping[ClientId, int],
    candidates: Sequence[int],
    index: int,
    moved: Influence,
) -> Left | None:
    """Return how much malicious movement, by evidence ``all``, is in the rollback model."""
    poison = _sums_before(candidates, moved.rounds, moved.sensitivity)
    if poison[index] <= 0:
        return None
    honest = _sums_before(candidates, moved.rounds, moved.honest)
    before = history.rounds[: candidates[index]]
    theirs = {c for entry in before for c in entry.clients if c in bad and entry.index >= since.get(c, 0)}
    clean = _decide(poison, [0.0] * len(poison), "prefix")
    share = poison[index] / (poison[index] + honest[index])
    return Left(share, frozenset(theirs), candidates[index], candidates[clean])


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
    """Return the client-rounds of the replay, and those of retraining."""
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
    """Return each malicious client's share of the total sensitivity."""
    total = float(found.sensitivity.sum())
    return {c: part / total if total > 0 else 0.0 for c, part in found.parts.items()}
