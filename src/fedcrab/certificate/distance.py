"""‖recovered - W_T‖, W_T the model trained from scratch: every way to bound it.

By parts: recovery's way, the poison in the rollback model, retraining's way from there. By another kept
model in place of the rollback's, whichever gives the least: ‖M̃ - M_t‖ is measured. By the poisoned model: no
retraining has to be followed. By the residual, where local training contracts to a point. By following both.

Recovery and retraining side by side, round by round: D bounds ‖M̃ - W_t‖.

Begin with D = ψ of the rollback model. Then, for each round t from there on, the lesser of

    together (where it was replayed)   D ← κ·D + Σ p_c·|ℓ_c - ‖û_c‖| + b_t + λ·Σ |p_c - p'_c|·ψ_t
    apart                              D ← D + Σ p_c·ℓ_c + ‖W_{t+1} - W_t‖

p are the shares of those who replayed it, p' those of all its honest clients (p = 0 of the others), b_t the
distance of the two means at M_t, which the ledger knows: 0 where they are the same clients.

Proof. Retraining does W ← A(W) with A = Σ p'_c·T_c; recovery M̃ ← S(M̃) + Σ p_c·(ℓ_c/‖û_c‖ - 1)·û_c with S
= Σ p_c·T_c. ‖S(M̃) - S(W)‖ ≤ κD. S - A is a difference of updates, as both shares add up to 1: at M_t its
length is b_t, and at W it differs from that by λ·Σ |p_c - p'_c|·ψ_t at most. Or each goes its own way:
recovery no further than its step, retraining no further than the shortest bound of its own
(:mod:`fedcrab.certificate.path_length`). Where recovery is not calibrated and nothing is left out, the
distance does not grow at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from fedcrab.certificate.assumptions import SOUND, Assumptions, Term, finite, least, power, total, unknown
from fedcrab.certificate.document import Inputs
from fedcrab.certificate.path_length import SAME, apart, is_one_map, shortest_legs
from fedcrab.certificate.poison import EXACT, GEOMETRY, UNIT, PoisonBounds
from fedcrab.certificate.replay_bound import replayed_term
from fedcrab.certificate.vector_terms import vector_terms
from fedcrab.history.records import RoundRecord
from fedcrab.recover.answers import Answers
from fedcrab.recover.folder import RecoveryArtifacts
from fedcrab.recover.replay_record import ReplayRecord
from fedcrab.rollback.decision import Plan
from fedcrab.types import ClientId

FORMULA = "recovery and retraining side by side: D ← κD + Σ p_c·|ℓ_c - ‖û_c‖| + what the missing clients make"
ASSUMES = (
    "recovery is crab with weighted means, its steps are as reported",
    "clients train in recovery as they did in the history: same epochs, batches and examples",
)
Table = Mapping[str, Any]


def coupled(
    plan: Plan,
    facts: PoisonBounds,
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


def _strayed(step: Table, entry: RoundRecord, plan: Plan, drift: float) -> float:
    """How far the step is from what all honest clients would have done at the same model."""
    fresh = np.array(step.get("renewed") or step["lengths"])
    calibrated = float(np.average(np.abs(step["lengths"] - fresh), weights=step["examples"]))
    rows = dict(zip(entry.clients, entry.examples.tolist(), strict=True))
    honest = {client: n for client, n in rows.items() if not plan.is_malicious(client, entry.index)}
    ours = dict(zip(step["clients"], step["examples"], strict=True))
    if ours == honest:
        return calibrated
    if entry.coordinates.sketched or not ours.keys() <= honest.keys():
        return inf
    return calibrated + _missing(entry, ours, honest, drift)


def _missing(
    entry: RoundRecord, ours: Mapping[ClientId, float], honest: Mapping[ClientId, float], drift: float
) -> float:
    """b_t + λ·Σ |p_c - p'_c|·ψ_t."""
    some, everybody = sum(ours.values()), sum(honest.values())
    change = {c: ours.get(c, 0.0) / some - n / everybody for c, n in honest.items()}
    places = [entry.clients.index(client) for client in change]
    there = float(np.linalg.norm(entry.coordinates.combine(places, list(change.values()))))
    return there * (1 + GEOMETRY) + drift * sum(abs(c) for c in change.values())


def distance_terms(
    inputs: Inputs,
    given: Assumptions,
    plan: Plan,
    facts: PoisonBounds,
    psi: Sequence[float] | None,
    evidence: RecoveryArtifacts,
    terms: Mapping[str, Term],
    *,
    answers: Sequence[Answers] | None,
    replayed: bool,
) -> dict[str, Term]:
    """Every bound of ‖recovered - W_T‖ that there are grounds for, from the terms so far.

    ``answers`` are those of recovery and history; None gives the terms of certificates of format 1. Without
    ``replayed`` they are those of format 2, which has no term for a replay.
    """
    followed = inputs.crab is not None and inputs.aggregation == "fedavg" and inputs.same_batches
    by_crab = evidence.steps if followed else None
    noise = terms["noise.length"].value if evidence.start is not None else 0.0
    begun = noise or 0.0
    found = {
        "distance.parts": _by_parts(evidence, terms),
        "distance.kept": _by_kept(plan, facts, psi, given, evidence),
        "distance.poisoned": _by_poisoned(plan, evidence, terms["poison.whole"]),
    }
    records = records_of(evidence.steps) if replayed and inputs.same_batches else ()
    if replayed:
        found["distance.replayed"] = replayed_term(
            records, facts, psi, given, first=plan.rollback_round, start=begun
        )
    if answers is None:
        found["distance.coupled"] = coupled(plan, facts, psi, given, by_crab, begun)
    else:
        found |= vector_terms(
            plan, facts, psi, given, evidence, answers, by_crab, begun, found["distance.poisoned"], records
        )
    return {
        **found,
        "distance.residual": _by_residual(facts, given, evidence),
        "distance.measured": _measured(plan, evidence, inputs.same_batches),
    }


def records_of(steps: Sequence[Table] | None) -> tuple[ReplayRecord, ...]:
    """The records of a replay's steps; none of other methods'."""
    return tuple(ReplayRecord.from_table(step["record"]) for step in steps or () if "record" in step)


def _by_parts(evidence: RecoveryArtifacts, terms: Mapping[str, Term]) -> Term:
    later = least({name: term for name, term in terms.items() if name.startswith("retraining.")})
    rest = later[1] if later else terms["retraining.constants"]
    formula = "recovery's path + poison in the rollback model + retraining's path from there"
    return total(formula, *_recovery(evidence, terms), terms["poison.rollback"], rest)


def _recovery(evidence: RecoveryArtifacts, terms: Mapping[str, Term]) -> list[Term]:
    """‖recovered - rollback model‖: measured, or else what is planned, from where recovery begins."""
    if evidence.model is not None:
        return [terms["path.moved"]]
    return [terms["path.planned"], *([terms["noise.length"]] if evidence.start is not None else [])]


def _by_kept(
    plan: Plan,
    facts: PoisonBounds,
    psi: Sequence[float] | None,
    given: Assumptions,
    evidence: RecoveryArtifacts,
) -> Term:
    """‖M̃ - W_T‖ ≤ ‖M̃ - M_t‖ + ‖M_t - W_t‖ + ‖W_t - W_T‖, for any kept round t."""
    formula = "least over kept rounds of ‖recovered - M_t‖ + ψ_t + retraining's path from t"
    legs = shortest_legs(facts, psi, given)
    if psi is None or legs is None or evidence.model is None:
        return unknown(formula, "a recovered model", "Ψ is a bound")
    history = plan.history
    ways = [apart(plan, evidence.model, history.model(t)) + psi[t] + sum(legs[t:]) for t in history.kept]
    return finite(Term(min(ways), SOUND, formula, ("Ψ is a bound",)))


def _by_poisoned(plan: Plan, evidence: RecoveryArtifacts, whole: Term) -> Term:
    """‖M̃ - W_T‖ ≤ ‖M̃ - M_T‖ + ψ_T: the first is measured, and no retraining has to be followed."""
    formula = "‖recovered - poisoned model‖, measured, + ψ of the whole training"
    if evidence.model is None:
        return unknown(formula, "a recovered model", *whole.assumes)
    gone = apart(plan, evidence.model, plan.history.final_model())
    return total(formula, Term(gone, SOUND, ""), whole)


def _by_residual(facts: PoisonBounds, given: Assumptions, evidence: RecoveryArtifacts) -> Term:
    """Both are near the fixed point W* of A: ‖x - W*‖ ≤ ‖A(x) - x‖/(1-κ), ‖W_T - W*‖ ≤ κ^T·‖M_0 - W*‖."""
    formula = "(‖honest update at the recovered model‖ + κ^T·φ_0)/(1-κ)"
    assumes = (SAME, "κ < 1: strongly convex", "the residual was measured at this model", EXACT)
    expansion, residual = given.local_expansion(), given.residual
    if expansion is None or expansion >= 1 or residual is None or evidence.model is None:
        return unknown(formula, *assumes)
    if not is_one_map(facts, given):
        return unknown(formula, *assumes)
    gap = 1 - expansion
    fading = power(expansion, len(facts.busy)) * facts.honest[0]
    rounding = 16 * UNIT * (facts.start + facts.honest[0] / gap + residual / gap)
    return finite(Term((residual + fading + rounding) / gap, SOUND, formula, assumes))


def _measured(plan: Plan, evidence: RecoveryArtifacts, same: bool) -> Term:
    formula = "‖recovered - retrained model‖, measured"
    if evidence.model is None or evidence.retrained is None:
        return unknown(formula, "a retraining that was run")
    own = () if same else ("it is meant, not one with the history's batches: it drew batches of its own",)
    assumes = ("the retraining is as it was reported", *own)
    return Term(apart(plan, evidence.model, evidence.retrained), SOUND, formula, assumes)
