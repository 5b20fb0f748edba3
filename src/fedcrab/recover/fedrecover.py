"""FedRecover: repeat every round; the server estimates most of the honest clients' updates.

    û = u_t + H̃·(ŵ_t - M_t)

u_t is the client's stored update, M_t the history's model, and ŵ_t the recovered one. H̃ is the client's
Hessian, estimated by L-BFGS from its last pairs (Δw = ŵ - M, Δg = exact - stored), each from a round in which
the client computed exactly. Updates are used instead of gradients, so H̃ is a negative Hessian times a step
size; the formulas are the same. Clients compute exactly in the first ``warm_up`` rounds, in every
``correct_every``-th round after them, and in the last ``tune``; so does any client whose estimate exceeds τ
in a coordinate, or cannot be made at all.

An estimated number above the abnormality threshold τ is not believed:

    τ = max over rounds t of τ_t,   at most a share ``tolerance`` of all |u_t^c[k]| exceed τ_t

over the honest clients c of round t and the trained numbers k.

Cao, Jia, Zhang, Gong, "FedRecover: Recovering from Poisoning Attacks in Federated Learning using Historical
Information", IEEE S&P 2023. Its defaults (20, 10, 5) are for hundreds of rounds; for fewer they are scaled
here: T/10, T/8 and T/20 of T rounds (40 rounds: 4, 5 and 2). Departs from it: it begins at the rollback
model, which no named client has touched, and counts its rounds from there (``rollback=False`` begins at the
first model, as published). If updates are stored in a few bits, Δg contains their rounding error.

Where the paper is ambiguous: the first correction comes ``correct_every`` rounds after the warm-up; a
replaced estimate gives a pair too; a round with ŵ = M gives none; a client with fewer pairs than ``pairs`` is
estimated from those it has. Buffers (BatchNorm's statistics and counters) are not part of pairs or τ: an
estimate takes them as stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor

import numpy as np
from numpy.typing import NDArray

from fedcrab.admission import no_updates
from fedcrab.aggregate.mean import Aggregate, fedavg, with_buffers
from fedcrab.errors import ConfigError
from fedcrab.history import History
from fedcrab.lbfgs import hessian_factors
from fedcrab.recover.step import (
    Pair,
    Pairs,
    Step,
    check_answers,
    check_epochs,
    check_updates,
    renew,
)
from fedcrab.rollback.decision import Plan
from fedcrab.types import ClientId, Fleet, Layout, Rejection, Updates, Vector
from fedcrab.vectors import Matrix64, add_weighted, is_finite, stretches

ROWS = 4  # blocks of this many rows fit the cache
PAIRS = 2  # pairs of (model's movement, updates' change) per estimate


def abnormality_threshold(history: History, malicious: Collection[ClientId], tolerance: float) -> float:
    """Return τ, in one pass over the stored updates."""
    trained, tau = history.charter.layout.trained(), 0.0
    for entry in history.rounds:
        history.verify_ahead(entry.index)
        updates = history.updates(entry.index)
        rows = [row for c, row in zip(updates.clients, updates.vectors, strict=True) if c not in malicious]
        tau = _round_threshold(rows, trained, tolerance, least=tau)
    return tau


def _round_threshold(
    rows: Sequence[Vector], trained: Sequence[slice], tolerance: float, *, least: float
) -> float:
    """Return τ_t, the smallest value that few enough others exceed, or ``least`` if that is more."""
    held = floor(tolerance * len(rows) * sum(part.stop - part.start for part in trained)) + 1
    largest = np.zeros(0, np.float32)  # of the values above ``least``
    for values in (row[part] for row in rows for part in trained):
        bound = largest[0] if len(largest) == held else np.float32(least)
        if max(values.max(initial=0), -values.min(initial=0)) > bound:  # most rows add nothing
            sizes = np.abs(values)
            largest = _largest(np.concatenate([largest, sizes[sizes > bound]]), held)
    return float(largest[0]) if len(largest) == held else least


def _largest(values: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Return the ``count`` largest values, the smallest of them first."""
    if count >= len(values):
        return np.sort(values)
    return np.partition(values, len(values) - count)[-count:]


def estimate_all(
    stored: Updates, pairs: Pairs, moved: Vector, tau: float, layout: Layout
) -> tuple[Updates, tuple[Rejection, ...]]:
    """Return û = u + H̃·(ŵ - M) of each client, and the clients that have no usable estimate, and why.

    τ bounds every trained number of a usable estimate. Clients that computed in the same rounds share Δw and
    what follows from it.
    """
    problems = dict.fromkeys(stored.clients, "there is no pair to estimate from")
    estimates = np.empty_like(stored.vectors)
    for place in layout.buffers():
        estimates[:, place] = stored.vectors[:, place]  # not part of the pairs: they stay as stored
    alike: dict[tuple[int, ...], list[int]] = {}
    for row, client in enumerate(stored.clients):
        if pairs.get(client):
            alike.setdefault(tuple(id(p.moved) for p in pairs[client]), []).append(row)
    for rows in alike.values():
        theirs = [pairs[stored.clients[row]] for row in rows]
        shared, changed = [p.moved for p in theirs[0]], [[p.changed for p in own] for own in theirs]
        factors = hessian_factors(shared, changed, moved)
        for row, own, weights in zip(rows, changed, factors, strict=True):
            problems[stored.clients[row]] = (
                "the pairs determine no Hessian"
                if weights is None
                else _add(estimates[row], stored.vectors[row], [*shared, *own, moved], weights, tau, layout)
            )
    usable = [client for client, problem in problems.items() if not problem]
    rejected = tuple(Rejection(client, problem) for client, problem in problems.items() if problem)
    return Updates(stored.clients, estimates, stored.weights).only(usable), rejected


def _add(
    out: Vector, stored: Vector, rows: Sequence[Vector], factors: Matrix64, tau: float, layout: Layout
) -> str:
    """Fill in stored + Σ factor·row; return why the result is rejected, or nothing."""
    for part in layout.trained():
        if not add_weighted(stored[part], factors, [row[part] for row in rows], out[part], most=tau):
            return f"the estimate reaches {_reach(stored, rows, factors, layout):.3g}, above {tau:.3g}"
    return ""


def _reach(stored: Vector, rows: Sequence[Vector], factors: Matrix64, layout: Layout) -> float:
    """Return the largest trained number of an estimate."""
    parts = stretches(layout.trained(), ROWS)
    blocks = (factors @ np.array([row[part] for row in rows]) + stored[part] for part in parts)
    return float(np.max([np.abs(block).max() for block in blocks]))


def with_new_pairs(
    pairs: Pairs, exact: Updates, stored: Updates, moved: Vector, *, round: int, memory: int, layout: Layout
) -> Pairs:
    """Return the pairs including those of this round's exact answers, at most ``memory`` per client."""
    if not moved.any():
        return pairs
    before, longer = dict(zip(stored.clients, stored.vectors, strict=True)), dict(pairs)
    for client, vector in zip(exact.clients, exact.vectors, strict=True):
        with np.errstate(over="ignore"):
            changed = trained_only(vector - before[client], layout)
        if is_finite(changed):
            longer[client] = (*longer.get(client, ()), Pair(round, moved, changed))[-memory:]
    return longer


def trained_only(vector: Vector, layout: Layout) -> Vector:
    """Return the vector with its buffers set to zero, so that they affect no product.

    Without buffers, it is the same array.
    """
    buffers = layout.buffers()
    if buffers:
        vector = vector.copy()
    for place in buffers:
        vector[place] = 0
    return vector


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rounds in which every honest client computes exactly."""

    rounds: int  # T, of the whole training
    warm_up: int  # the first T_w
    correct_every: int  # every T_c-th after them; 1 means all, which is retraining
    tune: int  # the last T_f
    first: int = 0  # where recovery begins

    def is_exact(self, t: int) -> bool:
        """Return whether round t of the history is one of them."""
        done = t - self.first
        periodic = (done - self.warm_up + 1) % self.correct_every == 0
        return done < self.warm_up or periodic or t >= self.rounds - self.tune


def fedrecover(
    plan: Plan,
    fleet: Fleet,
    *,
    aggregate: Aggregate | None = None,
    epochs: int | None = None,
    after: Step | None = None,
    warm_up: int | None = None,
    correct_every: int | None = None,
    tune: int | None = None,
    pairs: int = PAIRS,
    tolerance: float = 1e-6,
    rollback: bool = True,
) -> Iterator[Step]:
    """Recover from the plan's rollback model; with ``rollback=False`` from the first model, as published.

    Clients are asked in the first ``warm_up`` rounds, then in every ``correct_every``-th, and in the last
    ``tune`` (None: T/10, T/8 and T/20 of T rounds, at most 20, 10 and 5). ``pairs`` is the number of
    pairs behind each estimate. ``aggregate`` is the aggregation rule (None: the weighted mean).
    ``tolerance`` is the share of a round's honest stored numbers that may exceed τ; with 0, the fewest
    estimates are replaced. ``epochs`` is the number of local epochs (None: the fleet's own). ``after`` is the
    last step of an interrupted recovery, which continues from there. A step keeps its pairs' vectors.
    """
    check_epochs(epochs)
    _check(pairs, tolerance, rollback)
    check_updates(plan.history, "fedrecover")
    first, rounds = plan.rollback_round if rollback else 0, len(plan.history.rounds)
    schedule = replace(scheduled(rounds, pairs, warm_up, correct_every, tune), first=first)
    rule = aggregate or fedavg()
    check_answers(rule, {t: plan.askable(t) for t in range(first, rounds)})
    return _recover(plan, fleet, rule, epochs, after, schedule, pairs, tolerance)


def scheduled(
    rounds: int, pairs: int, warm_up: int | None, correct_every: int | None, tune: int | None
) -> Schedule:
    """Return the schedule; values that are not given are the paper's, scaled with the rounds."""
    usual = {
        "warm_up": min(20, max(pairs + 1, rounds // 10)),
        "correct_every": min(10, max(2, rounds // 8)),
        "tune": min(5, max(1, rounds // 20)),
    }
    given = {"warm_up": warm_up, "correct_every": correct_every, "tune": tune}
    least = {"warm_up": pairs + 1, "correct_every": 1, "tune": 0}  # fewer leave no pair to estimate from
    for name, value in given.items():
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least[name]:
            raise ConfigError(f"{name} must be a whole number of {least[name]} or more, got {value!r}")
        usual[name] = value
    return Schedule(rounds, **usual)


def exact_rounds(rounds: int, first: int = 0) -> list[int]:
    """Return the rounds from ``first`` on in which all clients are asked, by the default schedule."""
    schedule = replace(scheduled(rounds, PAIRS, None, None, None), first=first)
    return [t for t in range(first, rounds) if schedule.is_exact(t)]


def _check(pairs: int, tolerance: float, rollback: bool) -> None:
    if not isinstance(rollback, bool):
        raise ConfigError(f"rollback must be true or false, got {rollback!r}")
    if not isinstance(pairs, int) or isinstance(pairs, bool) or pairs < 1:
        raise ConfigError(f"pairs must be a whole number of 1 or more, got {pairs!r}")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance must be at least 0 and below 1, got {tolerance!r}")


def _recover(
    plan: Plan,
    fleet: Fleet,
    aggregate: Aggregate,
    epochs: int | None,
    after: Step | None,
    schedule: Schedule,
    memory: int,
    tolerance: float,
) -> Iterator[Step]:
    history, layout = plan.history, plan.history.charter.layout
    rule, tau = with_buffers(aggregate, layout), abnormality_threshold(history, plan.malicious, tolerance)
    first = schedule.first
    model, pairs = (after.model, after.pairs) if after else (history.model(first), {})
    for t in range(after.round + 1 if after else first, schedule.rounds):
        stored = history.updates(t, plan.askable(t))
        moved = trained_only(model - history.model(t), layout)
        estimates, fixed = no_updates(layout.size), tuple[Rejection, ...]()
        if not schedule.is_exact(t):
            estimates, fixed = estimate_all(stored, pairs, moved, tau, layout)
        asked = [client for client in stored.clients if client not in estimates.clients]
        renewed = renew(fleet, model, asked, round=t, epochs=epochs)
        pairs = with_new_pairs(pairs, renewed.updates, stored, moved, round=t, memory=memory, layout=layout)
        used = replace(renewed, updates=_joined(renewed.updates, estimates), fixed=fixed)
        step = replace(used.applied(model, rule, layout, t), pairs=pairs)
        yield step
        model = step.model


def _joined(one: Updates, other: Updates) -> Updates:
    """Return the updates of two sets of clients as one."""
    if not (one.clients and other.clients):
        return one if one.clients else other
    vectors = np.concatenate([one.vectors, other.vectors])
    return Updates((*one.clients, *other.clients), vectors, np.concatenate([one.weights, other.weights]))
