"""Answers that refute what is declared: a check that costs nothing, before anything is claimed.

An honest client's training obeys ‖T(x) - T(y) - C·(x-y)‖ ≤ ρ‖x-y‖ wherever the declared constants hold
(:meth:`Assumptions.local_affine`), so that its updates differ by at most λ‖x-y‖, λ = |1-C| + ρ. Of every
fresh answer û at x_t the length is known, that of u at M_t is in the ledger, and so is ‖x_t - M_t‖:

    |‖û_c‖ - ‖u_c‖| ≤ λ·‖x_t - M_t‖

Of answers whose vectors were kept, the first inequality itself can be looked at: same client, same batches.
One breach refutes the constants, the same batches or that client's honesty. Which of them, nobody can tell;
every bound with κ in it needs all three, so none is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedcrab.certificate.assumptions import HEURISTIC, Assumptions, Term, unknown
from fedcrab.certificate.enclosure import Place, place_of
from fedcrab.certificate.poison import UNIT, PoisonBounds
from fedcrab.recover.answers import Answers
from fedcrab.rollback.decision import Plan
from fedcrab.types import ClientId

FORMULA = (
    "largest ratio of what two answers of one client differ by to what the declared constants allow; above 1 "
    "it refutes them, or the client's honesty"
)
CLOSE = 1e-4  # how far two answers to one question may be from each other, as a share of their lengths
Found = tuple[float, ClientId, int]  # the ratio, whose, in which round


def refutation(
    plan: Plan,
    facts: PoisonBounds,
    given: Assumptions,
    steps: Sequence[Mapping[str, Any]] | None,
    answers: Sequence[Answers],
) -> tuple[Term, bool]:
    """The largest ratio, and whether it refutes what is declared."""
    affine = given.local_affine()
    if affine is None or not facts.busy:
        return unknown(FORMULA, "κ", "fresh answers"), False
    found = [
        *_by_lengths(plan, facts, affine, steps or ()),
        *_by_vectors(plan, facts, given, affine, answers),
    ]
    if not found:
        return unknown(FORMULA, "fresh answers"), False
    ratio, client, t = max(found)
    if ratio <= 1:
        return Term(ratio, HEURISTIC, FORMULA), False
    said = f"refuted by client {client!r} in round {t}: the declared constants, its batches or its honesty"
    return Term(ratio, HEURISTIC, FORMULA, (said,)), True


def _by_lengths(
    plan: Plan, facts: PoisonBounds, affine: tuple[float, float], steps: Sequence[Mapping[str, Any]]
) -> Iterator[Found]:
    drift = abs(1 - affine[0]) + affine[1]
    for step in steps:
        t = step["round"]
        if "measured" not in step or not 0 <= t < len(facts.busy):
            continue
        entry, apart = plan.history.rounds[t], step["measured"]["apart"]
        then = dict(zip(entry.clients, entry.norms.tolist(), strict=True))
        for client, now in zip(step["clients"], step["renewed"] or step["lengths"], strict=True):
            if client in then:
                slack = CLOSE * (now + then[client]) + 32 * UNIT * (facts.reach[t] + apart)
                yield abs(now - then[client]) / max(drift * apart + slack, 1e-300), client, t


def _by_vectors(
    plan: Plan,
    facts: PoisonBounds,
    given: Assumptions,
    affine: tuple[float, float],
    answers: Sequence[Answers],
) -> Iterator[Found]:
    """Every answer beside the first and the last before it of the same client, with the same batches."""
    earlier = dict[tuple[ClientId, int], tuple[Place, ...]]()
    for place in (place_of(plan, found, affine) for found in answers):
        for client in place.rows:
            key = (client, -1 if given.full_batch else place.round)
            known = earlier.get(key, ())
            for other in known:
                yield _ratio(place, other, client, affine, facts), client, place.round
            earlier[key] = (*known[:1], place)


def _ratio(
    one: Place, other: Place, client: ClientId, affine: tuple[float, float], facts: PoisonBounds
) -> float:
    moved = one.model - other.model
    first, second = (p.updates[p.rows[client]].astype(np.float64) for p in (one, other))
    differ = float(np.linalg.norm((1 - affine[0]) * moved + first - second))
    lengths = one.lengths[one.rows[client]] + other.lengths[other.rows[client]]
    errors = one.errors[one.rows[client]] + other.errors[other.rows[client]]
    slack = CLOSE * lengths + 32 * UNIT * (one.size + other.size + facts.start) + errors
    return differ / max(affine[1] * float(np.linalg.norm(moved)) + float(slack), 1e-300)
