"""Every term of a certificate, from the ledger, the models, the steps and what is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedcrab.certify.assumptions import Assumptions, power
from fedcrab.certify.coupled import coupled
from fedcrab.certify.estimate import Estimate
from fedcrab.certify.inputs import Inputs
from fedcrab.certify.noise import analytic_sigma, classical_sigma
from fedcrab.certify.path import apart, moved, planned, travelled
from fedcrab.certify.poison import UNIT, Facts, distances, facts_of, plain_sum
from fedcrab.certify.printed import theorem_terms
from fedcrab.certify.retraining import KAPPA, SAME, is_one_map, retraining_terms
from fedcrab.certify.term import HEURISTIC, SOUND, Term, finite, least, total, unknown
from fedcrab.rollback import Plan
from fedcrab.types import Vector

DRAWS = "everybody not named malicious is honest, and draws the same batches in both trainings"
MEANS = "every aggregate is the mean of the updates, weighted by examples"
EXACT = "honest clients compute exactly; the server's float32 sums are allowed for"
POISON = "ψ: ψ_0 = 0, ψ_{t+1} = κ·ψ_t + s_t"


@dataclass(frozen=True)
class Evidence:
    """What there is besides the history."""

    model: Vector | None = None  # the recovered one
    steps: tuple[Mapping[str, Any], ...] | None = None
    start: Vector | None = None  # where recovery began, if not at the rollback model
    retrained: Vector | None = None
    retrained_steps: tuple[Mapping[str, Any], ...] | None = None


def statements(
    inputs: Inputs, plan: Plan, evidence: Evidence, guessed: Mapping[str, Estimate]
) -> dict[str, Term]:
    """All terms by name."""
    facts, given = facts_of(plan), inputs.assumptions
    rule, reach = inputs.aggregation, facts.reach[-1]
    psi = _psi(plan, facts, given)
    known = {name: e.value for name, e in guessed.items()}
    terms = {
        "path.planned": planned(plan, rule, inputs.crab, reach),
        "path.travelled": travelled(evidence.steps, rule, reach),
        "path.moved": moved(plan, evidence.model),
        "poison.influence": _influence(plan, facts),
        "poison.rollback": _poison(plan, facts, psi, plan.rollback_round),
        "poison.whole": _poison(plan, facts, psi, len(facts.sensitivity)),
    }
    later = retraining_terms(facts, psi, plan.rollback_round, given, known, evidence.retrained_steps)
    terms |= {f"retraining.{name}": term for name, term in later.items()}
    poison = terms["poison.rollback" if psi or plan.rollback_round == 0 else "poison.influence"]
    terms |= _noise(inputs, plan, evidence, poison)
    terms |= _distance(plan, facts, given, evidence, terms)
    by_crab = evidence.steps if inputs.crab is not None and rule == "fedavg" else None
    begun = terms["noise.length"].value if evidence.start is not None else 0.0
    terms["distance.coupled"] = coupled(plan, facts, psi, given, by_crab, begun or 0.0)
    terms |= theorem_terms(plan, facts, given, known, evidence.steps)
    return terms


def conclusion(terms: Mapping[str, Term]) -> tuple[str | None, Term]:
    """Which proved bound of the distance is the least, and that bound."""
    found = least({name: term for name, term in terms.items() if name.startswith("distance.")})
    return found or (None, unknown("‖recovered model - model retrained from scratch‖", KAPPA))


def _psi(plan: Plan, facts: Facts, given: Assumptions) -> tuple[float, ...] | None:
    """ψ_0 … ψ_T where it bounds anything."""
    expansion = given.local_expansion()
    if expansion is None or facts.broken is not None or plan.history.charter.aggregation != "fedavg":
        return None
    return distances(facts, expansion)


def _influence(plan: Plan, facts: Facts) -> Term:
    """Σ s_t: the poison to first order; where κ ≤ 1, poison.rollback is this and proved."""
    formula = "Σ s_t over the rounds before the rollback: the first-order influence"
    value = plain_sum(facts.sensitivity, plan.rollback_round)
    return Term(value, HEURISTIC, formula, ("no stretch of a distance counts",))


def _poison(plan: Plan, facts: Facts, psi: tuple[float, ...] | None, stop: int) -> Term:
    what = "rollback model - the same training without the malicious clients"
    formula = f"{POISON}; ‖{what if stop == plan.rollback_round else 'poisoned' + what[8:]}‖ ≤ ψ_{stop}"
    if stop == 0 and facts.broken != 0:
        return Term(0.0, SOUND, formula)  # M_0 has seen nobody
    if psi is None:
        return unknown(formula, MEANS, DRAWS, KAPPA, "no model was exchanged between rounds")
    return finite(Term(psi[stop], SOUND, formula, (MEANS, DRAWS, KAPPA, EXACT)))


def _noise(inputs: Inputs, plan: Plan, evidence: Evidence, poison: Term) -> dict[str, Term]:
    exact = "least σ with Φ(Ψ/2σ - εσ/Ψ) - e^ε·Φ(-Ψ/2σ - εσ/Ψ) ≤ δ"
    usual = "Ψ·√(2(ln 1.25 - ln δ))/ε, for ε < 1"
    secret = ("the noise is secret, and drawn once", "the statement is about the noised rollback model alone")
    length = unknown("‖noised model - rollback model‖, measured", "a noised model")
    if evidence.start is not None:
        there = apart(plan, evidence.start, plan.history.model(plan.rollback_round))
        length = Term(there, SOUND, length.formula)
    sigma, classical = unknown(exact, "epsilon and delta", "Ψ"), unknown(usual, "epsilon and delta", "Ψ")
    if inputs.noise is not None and poison.value is not None:
        budget, psi = (inputs.noise["epsilon"], inputs.noise["delta"]), poison.value
        assumes = (*poison.assumes, *secret)
        sigma = Term(analytic_sigma(psi, *budget), poison.flag, exact, assumes)
        if (value := classical_sigma(psi, *budget)) is not None:
            classical = Term(value, poison.flag, usual, (*assumes, "ε < 1"))
    return {"noise.deviation": sigma, "noise.classical": classical, "noise.length": length}


def _distance(
    plan: Plan, facts: Facts, given: Assumptions, evidence: Evidence, terms: Mapping[str, Term]
) -> dict[str, Term]:
    """Bounds of ‖recovered - W_T‖."""
    later = least({name: term for name, term in terms.items() if name.startswith("retraining.")})
    rest = later[1] if later else terms["retraining.constants"]
    formula = "recovery's path + poison in the rollback model + retraining's path from there"
    return {
        "distance.parts": total(formula, *_recovery(evidence, terms), terms["poison.rollback"], rest),
        "distance.poisoned": _through_poisoned(plan, evidence, terms["poison.whole"]),
        "distance.residual": _by_residual(facts, given, evidence),
        "distance.measured": _measured(plan, evidence),
    }


def _recovery(evidence: Evidence, terms: Mapping[str, Term]) -> list[Term]:
    """‖recovered - rollback model‖: measured, or else what is planned, from where recovery begins."""
    if evidence.model is not None:
        return [terms["path.moved"]]
    return [terms["path.planned"], *([terms["noise.length"]] if evidence.start is not None else [])]


def _through_poisoned(plan: Plan, evidence: Evidence, whole: Term) -> Term:
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
