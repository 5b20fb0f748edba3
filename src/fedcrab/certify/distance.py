"""‖recovered - W_T‖, W_T the model trained from scratch: every way to bound it.

By parts: recovery's way, the poison in the rollback model, retraining's way from there. By another kept
model in place of the rollback's, whichever gives the least: ‖M̃ - M_t‖ is measured. By the poisoned model: no
retraining has to be followed. By the residual, where local training contracts to a point. By following both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedcrab.certify.assumptions import Assumptions, power
from fedcrab.certify.coupled import coupled
from fedcrab.certify.evidence import Evidence
from fedcrab.certify.inputs import Inputs
from fedcrab.certify.path import apart
from fedcrab.certify.poison import EXACT, UNIT, Facts
from fedcrab.certify.retraining import SAME, is_one_map, shortest_legs
from fedcrab.certify.term import SOUND, Term, finite, least, total, unknown
from fedcrab.rollback import Plan


def distance_terms(
    inputs: Inputs,
    plan: Plan,
    facts: Facts,
    psi: Sequence[float] | None,
    evidence: Evidence,
    terms: Mapping[str, Term],
) -> dict[str, Term]:
    """Every bound of ‖recovered - W_T‖ that there are grounds for, from the terms so far."""
    given = inputs.assumptions
    by_crab = evidence.steps if inputs.crab is not None and inputs.aggregation == "fedavg" else None
    begun = terms["noise.length"].value if evidence.start is not None else 0.0
    return {
        "distance.parts": _by_parts(evidence, terms),
        "distance.kept": _by_kept(plan, facts, psi, given, evidence),
        "distance.poisoned": _by_poisoned(plan, evidence, terms["poison.whole"]),
        "distance.coupled": coupled(plan, facts, psi, given, by_crab, begun or 0.0),
        "distance.residual": _by_residual(facts, given, evidence),
        "distance.measured": _measured(plan, evidence),
    }


def _by_parts(evidence: Evidence, terms: Mapping[str, Term]) -> Term:
    later = least({name: term for name, term in terms.items() if name.startswith("retraining.")})
    rest = later[1] if later else terms["retraining.constants"]
    formula = "recovery's path + poison in the rollback model + retraining's path from there"
    return total(formula, *_recovery(evidence, terms), terms["poison.rollback"], rest)


def _recovery(evidence: Evidence, terms: Mapping[str, Term]) -> list[Term]:
    """‖recovered - rollback model‖: measured, or else what is planned, from where recovery begins."""
    if evidence.model is not None:
        return [terms["path.moved"]]
    return [terms["path.planned"], *([terms["noise.length"]] if evidence.start is not None else [])]


def _by_kept(
    plan: Plan, facts: Facts, psi: Sequence[float] | None, given: Assumptions, evidence: Evidence
) -> Term:
    """‖M̃ - W_T‖ ≤ ‖M̃ - M_t‖ + ‖M_t - W_t‖ + ‖W_t - W_T‖, for any kept round t."""
    formula = "least over kept rounds of ‖recovered - M_t‖ + ψ_t + retraining's path from t"
    legs = shortest_legs(facts, psi, given)
    if psi is None or legs is None or evidence.model is None:
        return unknown(formula, "a recovered model", "Ψ is a bound")
    history = plan.history
    ways = [apart(plan, evidence.model, history.model(t)) + psi[t] + sum(legs[t:]) for t in history.kept]
    return finite(Term(min(ways), SOUND, formula, ("Ψ is a bound",)))


def _by_poisoned(plan: Plan, evidence: Evidence, whole: Term) -> Term:
    """‖M̃ - W_T‖ ≤ ‖M̃ - M_T‖ + ψ_T: the first is measured, and no retraining has to be followed."""
    formula = "‖recovered - poisoned model‖, measured, + ψ of the whole training"
    if evidence.model is None:
        return unknown(formula, "a recovered model", *whole.assumes)
    gone = apart(plan, evidence.model, plan.history.final_model())
    return total(formula, Term(gone, SOUND, ""), whole)


def _by_residual(facts: Facts, given: Assumptions, evidence: Evidence) -> Term:
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


def _measured(plan: Plan, evidence: Evidence) -> Term:
    formula = "‖recovered - retrained model‖, measured"
    if evidence.model is None or evidence.retrained is None:
        return unknown(formula, "a retraining that was run")
    assumes = ("the retraining is as it was reported",)
    return Term(apart(plan, evidence.model, evidence.retrained), SOUND, formula, assumes)
