"""All statements of a certificate, from the ledger, the models, the steps and the declared constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedcrab.certificate.assumptions import Assumptions, Estimate
from fedcrab.certificate.distance import distance_terms
from fedcrab.certificate.document import Inputs
from fedcrab.certificate.enclosure import answers_of
from fedcrab.certificate.noise import analytic_sigma, classical_sigma
from fedcrab.certificate.path_length import KAPPA, apart, moved, planned, retraining_terms, travelled
from fedcrab.certificate.poison import EXACT, Premises
from fedcrab.certificate.refutation import answers_refute
from fedcrab.certificate.term import HEURISTIC, SOUND, Term, finite, least, unknown
from fedcrab.certificate.theorem_1 import theorem_terms
from fedcrab.recover.folder import RecoveryArtifacts
from fedcrab.recover.methods import METHODS
from fedcrab.rollback.decision import Plan

DRAWS = "everybody not named malicious is honest, and draws the same batches in both trainings"
MEANS = "every aggregate is the mean of the updates, weighted by examples"
PSI = (MEANS, DRAWS, KAPPA, EXACT)
POISON = "ψ: ψ_0 = 0, ψ_{t+1} = κ·ψ_t + s_t"


def certificate_terms(
    inputs: Inputs,
    plan: Plan,
    evidence: RecoveryArtifacts,
    estimated: Mapping[str, Estimate],
    *,
    vectors: bool = True,
    replayed: bool = True,
    met: bool = True,
) -> dict[str, Term]:
    """Return all terms by name.

    For older formats: without ``vectors`` those of format 1, without ``replayed`` those of format 2, and
    without ``met`` those of format 3.
    """
    premises = Premises.of(plan, inputs.assumptions)
    answers, checked = None, dict[str, Term]()
    if not inputs.same_batches:  # W draws the history's batches; the retraining that was run did not
        evidence = replace(evidence, answers=(), retrained_steps=None)
    comparable = evidence.steps if inputs.same_batches else None
    if vectors:
        known = premises.given.local_expansion() is not None
        answers = answers_of(plan, evidence.answers) if known else ()
        checked["answers.refute"], refuted = answers_refute(premises, comparable, answers)
        if refuted:
            premises = Premises.of(plan, Assumptions(), premises.facts)
    terms = _path_terms(premises, inputs, evidence, vectors)
    terms |= _poison_terms(premises)
    values = {name: estimate.value for name, estimate in estimated.items()}
    later = retraining_terms(premises, values, evidence.retrained_steps)
    terms |= {f"retraining.{name}": term for name, term in later.items()}
    bounded = premises.psi or plan.rollback_round == 0
    terms |= _noise(inputs, plan, evidence, terms["poison.rollback" if bounded else "poison.influence"])
    terms |= distance_terms(premises, inputs, evidence, terms, answers=answers, replayed=replayed, met=met)
    terms |= theorem_terms(premises, values, evidence.steps)
    if not vectors:
        return terms
    return {name: spelled_out(term) for name, term in {**terms, **checked}.items()}


def _path_terms(
    premises: Premises, inputs: Inputs, evidence: RecoveryArtifacts, vectors: bool
) -> dict[str, Term]:
    plan, rule = premises.plan, inputs.aggregation
    reach = premises.facts.reach[-1] + _noise_length(plan, evidence)
    steps = evidence.steps if not vectors or _from_rollback(inputs, plan, evidence) else None
    return {
        "path.planned": planned(plan, rule, inputs.crab, reach),
        "path.travelled": travelled(steps, rule, reach),
        "path.moved": moved(plan, evidence.model),
    }


def _poison_terms(premises: Premises) -> dict[str, Term]:
    """Return the terms of the poison; Σ s_t is its first order, and proven as poison.rollback if κ ≤ 1."""
    plan, sensitivity = premises.plan, premises.facts.sensitivity
    formula = "Σ s_t over the rounds before the rollback: the first-order influence"
    value = float(sum(sensitivity[: plan.rollback_round]))
    return {
        "poison.influence": Term(value, HEURISTIC, formula, ("no stretch of a distance counts",)),
        "poison.rollback": _poison(premises, plan.rollback_round),
        "poison.whole": _poison(premises, len(sensitivity)),
    }


def spelled_out(term: Term) -> Term:
    """Return the term with the assumptions of ψ instead of the words "Ψ is a bound"."""
    if "Ψ is a bound" not in term.assumes:
        return term
    every = [a for name in term.assumes for a in (PSI if name == "Ψ is a bound" else (name,))]
    return replace(term, assumes=tuple(dict.fromkeys(every)))


def conclusion(terms: Mapping[str, Term]) -> tuple[str | None, Term]:
    """Return the smallest proven bound of the distance, with its name; None and an unknown term if none."""
    found = least({name: term for name, term in terms.items() if name.startswith("distance.")})
    return found or (None, unknown("‖recovered model - model retrained from scratch‖", KAPPA))


def doing_nothing(terms: Mapping[str, Term]) -> tuple[str | None, Term]:
    """Return the smallest proven bound for the poisoned model, with its name; like :func:`conclusion`."""
    names = ("poison.whole", "poison.enclosed")
    found = least({name: terms[name] for name in names if name in terms})
    return found or (None, unknown("‖poisoned model - model retrained from scratch‖", KAPPA))


def _from_rollback(inputs: Inputs, plan: Plan, evidence: RecoveryArtifacts) -> bool:
    """Return whether the steps start at the rollback model; those of some methods do not."""
    method = METHODS.get(inputs.method)
    if method is None:
        return True
    if method.rolls_back:  # FedRecover as published starts earlier
        return not evidence.steps or evidence.steps[0]["round"] >= plan.rollback_round
    return method.start == "initial" and plan.rollback_round == 0


def _poison(premises: Premises, stop: int) -> Term:
    """Return ψ of the model before round ``stop``."""
    plan, psi = premises.plan, premises.psi
    what = "rollback model - the same training without the malicious clients"
    formula = f"{POISON}; ‖{what if stop == plan.rollback_round else 'poisoned' + what[8:]}‖ ≤ ψ_{stop}"
    if stop == 0 and premises.facts.broken != 0:
        return Term(0.0, SOUND, formula)  # no client has changed M_0
    if psi is None:
        return unknown(formula, MEANS, DRAWS, KAPPA, "no model was exchanged between rounds")
    return finite(Term(psi[stop], SOUND, formula, (MEANS, DRAWS, KAPPA, EXACT)))


def _noise_length(plan: Plan, evidence: RecoveryArtifacts) -> float:
    """Return the distance from the rollback model to the model that recovery started from."""
    if evidence.start is None:
        return 0.0
    return apart(plan, evidence.start, plan.history.model(plan.rollback_round))


def _noise(inputs: Inputs, plan: Plan, evidence: RecoveryArtifacts, poison: Term) -> dict[str, Term]:
    exact = "least σ with Φ(Ψ/2σ - εσ/Ψ) - e^ε·Φ(-Ψ/2σ - εσ/Ψ) ≤ δ"
    usual = "Ψ·√(2(ln 1.25 - ln δ))/ε, for ε < 1"
    secret = ("the noise is secret, and drawn once", "the statement is about the noised rollback model alone")
    length = unknown("‖noised model - rollback model‖, measured", "a noised model")
    if evidence.start is not None:
        length = Term(_noise_length(plan, evidence), SOUND, length.formula)
    sigma, classical = unknown(exact, "epsilon and delta", "Ψ"), unknown(usual, "epsilon and delta", "Ψ")
    if inputs.noise is not None and poison.value is not None:
        budget, psi = (inputs.noise["epsilon"], inputs.noise["delta"]), poison.value
        assumes = (*poison.assumes, *secret)
        sigma = Term(analytic_sigma(psi, *budget), poison.flag, exact, assumes)
        if (value := classical_sigma(psi, *budget)) is not None:
            classical = Term(value, poison.flag, usual, (*assumes, "ε < 1"))
    return {"noise.deviation": sigma, "noise.classical": classical, "noise.length": length}
