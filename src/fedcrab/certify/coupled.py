"""Recovery and retraining side by side, round by round: D bounds ‖M̃ - W_t‖.

Begin with D = ψ of the rollback model. Then, for each round t from there on:

    replayed by all its honest clients   D ← κ·D + Σ p_c·|ℓ_c - ‖û_c‖|
    replayed by some                     D ← D + Σ p_c·ℓ_c + ‖W_{t+1} - W_t‖
    not replayed                         D ← D + ‖W_{t+1} - W_t‖

Proof. With all of them, retraining does W ← A_t(W), and recovery M̃ ← A_t(M̃) + Σ p_c·(ℓ_c/‖û_c‖ - 1)·û_c;
A_t stretches their distance by κ at most. Otherwise each goes its own way: recovery no further than its step,
retraining no further than the shortest bound of its own (:mod:`fedcrab.certify.retraining`). Where recovery
is not calibrated and nothing is left out, the distance does not grow at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedcrab.certify.assumptions import Assumptions
from fedcrab.certify.poison import UNIT, Facts
from fedcrab.certify.retraining import shortest_legs
from fedcrab.certify.term import SOUND, Term, finite, unknown
from fedcrab.rollback import Plan

FORMULA = (
    "recovery and retraining side by side: D ← κD + Σ p_c·|ℓ_c - ‖û_c‖|, or both paths where clients differ"
)
ASSUMES = (
    "recovery is crab with weighted means, its steps are as reported",
    "clients train in recovery as they did in the history: same epochs, batches and examples",
)


def coupled(
    plan: Plan,
    facts: Facts,
    psi: Sequence[float] | None,
    given: Assumptions,
    steps: Sequence[Mapping[str, Any]] | None,
    start: float,
) -> Term:
    """Follow both to the end; ``start`` is how far from the rollback model recovery began."""
    expansion = given.local_expansion()
    legs = shortest_legs(facts, psi, given)
    if psi is None or expansion is None or legs is None or steps is None:
        return unknown(FORMULA, *ASSUMES, "Ψ is a bound", "the steps of a recovery by crab")
    first, replayed = plan.rollback_round, {step["round"]: step for step in steps}
    apart = psi[first] + start
    for t in range(first, len(facts.busy)):
        apart = _after(plan, t, replayed.get(t), apart, legs[t], expansion)
        apart += 16 * UNIT * (facts.reach[t] + psi[t] + apart)
    return finite(Term(apart, SOUND, FORMULA, (*ASSUMES, "Ψ is a bound")))


def _after(
    plan: Plan, t: int, step: Mapping[str, Any] | None, apart: float, own: float, expansion: float
) -> float:
    """D after round t, in which retraining can go ``own`` by itself."""
    if step is None or not step["examples"]:
        return apart + own
    shares = [n / sum(step["examples"]) for n in step["examples"]]
    if not _all_honest(plan, t, step):
        rows = zip(shares, step["lengths"], strict=True)
        return apart + own + float(sum(p * length for p, length in rows))
    fresh = step.get("renewed") or step["lengths"]
    both = zip(shares, step["lengths"], fresh, strict=True)
    return expansion * apart + float(sum(p * abs(length - before) for p, length, before in both))


def _all_honest(plan: Plan, t: int, step: Mapping[str, Any]) -> bool:
    """Whether the step was made by the round's honest clients, all of them, weighted as in the history."""
    entry = plan.history.rounds[t]
    rows = zip(entry.clients, entry.examples.tolist(), strict=True)
    honest = {client: n for client, n in rows if client not in plan.malicious}
    return dict(zip(step["clients"], step["examples"], strict=True)) == honest
