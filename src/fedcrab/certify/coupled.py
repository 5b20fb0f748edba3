"""Recovery and retraining side by side, round by round: D bounds ‖M̃ - W_t‖.

Begin with D = ψ of the rollback model. Then, for each round t from there on, the lesser of

    together (where it was replayed)   D ← κ·D + Σ p_c·|ℓ_c - ‖û_c‖| + b_t + λ·Σ |p_c - p'_c|·ψ_t
    apart                              D ← D + Σ p_c·ℓ_c + ‖W_{t+1} - W_t‖

p are the shares of those who replayed it, p' those of all its honest clients (p = 0 of the others), b_t the
distance of the two means at M_t, which the ledger knows: 0 where they are the same clients.

Proof. Retraining does W ← A(W) with A = Σ p'_c·T_c; recovery M̃ ← S(M̃) + Σ p_c·(ℓ_c/‖û_c‖ - 1)·û_c with S
= Σ p_c·T_c. ‖S(M̃) - S(W)‖ ≤ κD. S - A is a difference of updates, as both shares add up to 1: at M_t its
length is b_t, and at W it differs from that by λ·Σ |p_c - p'_c|·ψ_t at most. Or each goes its own way:
recovery no further than its step, retraining no further than the shortest bound of its own
(:mod:`fedcrab.certify.retraining`). Where recovery is not calibrated and nothing is left out, the distance
does not grow at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from fedcrab.certify.assumptions import Assumptions
from fedcrab.certify.poison import GEOMETRY, UNIT, Facts
from fedcrab.certify.retraining import shortest_legs
from fedcrab.certify.term import SOUND, Term, finite, unknown
from fedcrab.history.entries import RoundEntry
from fedcrab.rollback import Plan
from fedcrab.types import ClientId

FORMULA = "recovery and retraining side by side: D ← κD + Σ p_c·|ℓ_c - ‖û_c‖| + what the missing clients make"
ASSUMES = (
    "recovery is crab with weighted means, its steps are as reported",
    "clients train in recovery as they did in the history: same epochs, batches and examples",
)
Table = Mapping[str, Any]


def coupled(
    plan: Plan,
    facts: Facts,
    psi: Sequence[float] | None,
    given: Assumptions,
    steps: Sequence[Table] | None,
    start: float,
) -> Term:
    """Follow both to the end; ``start`` is how far from the rollback model recovery began."""
    expansion, drift = given.local_expansion(), given.local_drift()
    legs = shortest_legs(facts, psi, given)
    if psi is None or expansion is None or drift is None or legs is None or steps is None:
        return unknown(FORMULA, *ASSUMES, "Ψ is a bound", "the steps of a recovery by crab")
    first, replayed = plan.rollback_round, {step["round"]: step for step in steps if step["examples"]}
    gap = psi[first] + start
    for t in range(first, len(facts.busy)):
        step, entry = replayed.get(t), plan.history.rounds[t]
        together = inf if step is None else expansion * gap + _strayed(step, entry, plan, drift * psi[t])
        gap = min(together, gap + legs[t] + (_length(step) if step else 0.0))
        gap += 16 * UNIT * (facts.reach[t] + psi[t] + gap)
    return finite(Term(gap, SOUND, FORMULA, (*ASSUMES, "Ψ is a bound")))


def _length(step: Table) -> float:
    return float(np.average(step["lengths"], weights=step["examples"]))


def _strayed(step: Table, entry: RoundEntry, plan: Plan, drift: float) -> float:
    """How far the step is from what all honest clients would have done at the same model."""
    fresh = np.array(step.get("renewed") or step["lengths"])
    calibrated = float(np.average(np.abs(step["lengths"] - fresh), weights=step["examples"]))
    rows = dict(zip(entry.clients, entry.examples.tolist(), strict=True))
    honest = {client: n for client, n in rows.items() if client not in plan.malicious}
    ours = dict(zip(step["clients"], step["examples"], strict=True))
    if ours == honest:
        return calibrated
    if entry.coordinates.sketched or not ours.keys() <= honest.keys():
        return inf
    return calibrated + _missing(entry, ours, honest, drift)


def _missing(
    entry: RoundEntry, ours: Mapping[ClientId, float], honest: Mapping[ClientId, float], drift: float
) -> float:
    """b_t + λ·Σ |p_c - p'_c|·ψ_t."""
    some, everybody = sum(ours.values()), sum(honest.values())
    change = {c: ours.get(c, 0.0) / some - n / everybody for c, n in honest.items()}
    places = [entry.clients.index(client) for client in change]
    there = float(np.linalg.norm(entry.coordinates.combine(places, list(change.values()))))
    return there * (1 + GEOMETRY) + drift * sum(abs(c) for c in change.values())
