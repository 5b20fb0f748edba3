"""Every term of a certificate, from the ledger, the models, the steps and what is declared."""

from __future__ import annotations

from collections.abc import Mapping

from fedcrab.certify.assumptions import Assumptions
from fedcrab.certify.distance import distance_terms
from fedcrab.certify.estimate import Estimate
from fedcrab.certify.evidence import Evidence
from fedcrab.certify.inputs import Inputs
from fedcrab.certify.noise import analytic_sigma, classical_sigma
from fedcrab.certify.path import apart, moved, planned, travelled
from fedcrab.certify.poison import EXACT, Facts, distances, facts_of, plain_sum
from fedcrab.certify.printed import theorem_terms
from fedcrab.certify.retraining import KAPPA, retraining_terms
from fedcrab.certify.term import HEURISTIC, SOUND, Term, finite, least, unknown
from fedcrab.rollback import Plan

DRAWS = "everybody not named malicious is honest, and draws the same batches in both trainings"
MEANS = "every aggregate is the mean of the updates, weighted by examples"
POISON = "ψ: ψ_0 = 0, ψ_{t+1} = κ·ψ_t + s_t"


def statements(
    inputs: Inputs, plan: Plan, evidence: Evidence, guessed: Mapping[str, Estimate]
) -> dict[str, Term]:
    """All terms by name."""
    facts, given = facts_of(plan), inputs.assumptions
    rule, reach = inputs.aggregation, facts.reach[-1] + _begun(plan, evidence)
    psi = _psi(facts, given)
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
    terms |= distance_terms(inputs, plan, facts, psi, evidence, terms)
    terms |= theorem_terms(plan, facts, given, known, evidence.steps)
    return terms


def conclusion(terms: Mapping[str, Term]) -> tuple[str | None, Term]:
    """Which proved bound of the distance is the least, and that bound."""
    found = least({name: term for name, term in terms.items() if name.startswith("distance.")})
    return found or (None, unknown("‖recovered model - model retrained from scratch‖", KAPPA))


def _psi(facts: Facts, given: Assumptions) -> tuple[float, ...] | None:
    """ψ_0 … ψ_T where it bounds anything."""
    expansion = given.local_expansion()
    if expansion is None or facts.broken is not None or not facts.means:
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


def _begun(plan: Plan, evidence: Evidence) -> float:
    """How far from the rollback model recovery began: the length of the noise."""
    if evidence.start is None:
        return 0.0
    return apart(plan, evidence.start, plan.history.model(plan.rollback_round))


def _noise(inputs: Inputs, plan: Plan, evidence: Evidence, poison: Term) -> dict[str, Term]:
    exact = "least σ with Φ(Ψ/2σ - εσ/Ψ) - e^ε·Φ(-Ψ/2σ - εσ/Ψ) ≤ δ"
    usual = "Ψ·√(2(ln 1.25 - ln δ))/ε, for ε < 1"
    secret = ("the noise is secret, and drawn once", "the statement is about the noised rollback model alone")
    length = unknown("‖noised model - rollback model‖, measured", "a noised model")
    if evidence.start is not None:
        length = Term(_begun(plan, evidence), SOUND, length.formula)
    sigma, classical = unknown(exact, "epsilon and delta", "Ψ"), unknown(usual, "epsilon and delta", "Ψ")
    if inputs.noise is not None and poison.value is not None:
        budget, psi = (inputs.noise["epsilon"], inputs.noise["delta"]), poison.value
        assumes = (*poison.assumes, *secret)
        sigma = Term(analytic_sigma(psi, *budget), poison.flag, exact, assumes)
        if (value := classical_sigma(psi, *budget)) is not None:
            classical = Term(value, poison.flag, usual, (*assumes, "ε < 1"))
    return {"noise.deviation": sigma, "noise.classical": classical, "noise.length": length}
