"""The certificate of a recovery: what is stated of it, bound by hashes to what it is about.

The certificate of a recovery that lies in a folder.

Every term of a certificate, from the ledger, the models, the steps and what is declared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedcrab.certificate.answer_check import refutation
from fedcrab.certificate.assumptions import (
    HEURISTIC,
    SOUND,
    Assumptions,
    Estimate,
    Term,
    estimates,
    estimates_table,
    finite,
    least,
    rounded_up,
    unknown,
)
from fedcrab.certificate.distance import distance_terms
from fedcrab.certificate.document import CRAB, NAME, Inputs, digests, is_signed_by, read_certificate
from fedcrab.certificate.enclosure import answers_of
from fedcrab.certificate.noise import analytic_sigma, classical_sigma
from fedcrab.certificate.path_length import KAPPA, apart, moved, planned, retraining_terms, travelled
from fedcrab.certificate.poison import EXACT, PoisonBounds, distances, plain_sum, poison_bounds
from fedcrab.certificate.refutation import refuse_refuted
from fedcrab.certificate.theorem_1 import theorem_terms
from fedcrab.errors import ConfigError, DamagedError
from fedcrab.history import History
from fedcrab.history.chain import SNAPSHOTS
from fedcrab.history.snapshots import Snapshots
from fedcrab.recover import Step
from fedcrab.recover.answers import Answers
from fedcrab.recover.folder import SUMMARY, RecoveryArtifacts, RecoveryFolder
from fedcrab.recover.methods import METHODS
from fedcrab.rollback.decision import OPTIONAL, SETTINGS, Plan, plan
from fedcrab.types import Vector

DRAWS = "everybody not named malicious is honest, and draws the same batches in both trainings"
MEANS = "every aggregate is the mean of the updates, weighted by examples"
PSI = (MEANS, DRAWS, KAPPA, EXACT)
POISON = "ψ: ψ_0 = 0, ψ_{t+1} = κ·ψ_t + s_t"


def certificate_terms(
    inputs: Inputs,
    plan: Plan,
    evidence: RecoveryArtifacts,
    guessed: Mapping[str, Estimate],
    *,
    vectors: bool = True,
    replayed: bool = True,
) -> dict[str, Term]:
    """All terms by name; without ``vectors`` those of format 1, without ``replayed`` those of format 2."""
    facts, given = poison_bounds(plan), inputs.assumptions
    answers, checked = None, dict[str, Term]()
    if not inputs.same_batches:  # then W, which draws the history's, is another training than was run
        evidence = replace(evidence, answers=(), retrained_steps=None)
    comparable = evidence.steps if inputs.same_batches else None
    if vectors:
        answers = answers_of(plan, evidence.answers) if given.local_expansion() is not None else ()
        checked["answers.refute"], refuted = refutation(plan, facts, given, comparable, answers)
        given = Assumptions() if refuted else given
    rule, reach = inputs.aggregation, facts.reach[-1] + _begun(plan, evidence)
    psi = _psi(facts, given)
    known = {name: e.value for name, e in guessed.items()}
    steps = evidence.steps if not vectors or _from_rollback(inputs, plan, evidence) else None
    terms = {
        "path.planned": planned(plan, rule, inputs.crab, reach),
        "path.travelled": travelled(steps, rule, reach),
        "path.moved": moved(plan, evidence.model),
        "poison.influence": _influence(plan, facts),
        "poison.rollback": _poison(plan, facts, psi, plan.rollback_round),
        "poison.whole": _poison(plan, facts, psi, len(facts.sensitivity)),
    }
    later = retraining_terms(facts, psi, plan.rollback_round, given, known, evidence.retrained_steps)
    terms |= {f"retraining.{name}": term for name, term in later.items()}
    poison = terms["poison.rollback" if psi or plan.rollback_round == 0 else "poison.influence"]
    terms |= _noise(inputs, plan, evidence, poison)
    terms |= distance_terms(
        inputs, given, plan, facts, psi, evidence, terms, answers=answers, replayed=replayed
    )
    terms |= theorem_terms(plan, facts, given, known, evidence.steps)
    if not vectors:
        return terms
    return {name: spelled_out(term) for name, term in {**terms, **checked}.items()}


def spelled_out(term: Term) -> Term:
    """The term with all that it assumes, in place of the name of another bound."""
    if "Ψ is a bound" not in term.assumes:
        return term
    every = [a for name in term.assumes for a in (PSI if name == "Ψ is a bound" else (name,))]
    return replace(term, assumes=tuple(dict.fromkeys(every)))


def conclusion(terms: Mapping[str, Term]) -> tuple[str | None, Term]:
    """Which proved bound of the distance is the least, and that bound."""
    found = least({name: term for name, term in terms.items() if name.startswith("distance.")})
    return found or (None, unknown("‖recovered model - model retrained from scratch‖", KAPPA))


def doing_nothing(terms: Mapping[str, Term]) -> tuple[str | None, Term]:
    """Which proved bound of the poisoned model's own distance is the least, and that bound."""
    names = ("poison.whole", "poison.enclosed")
    found = least({name: terms[name] for name in names if name in terms})
    return found or (None, unknown("‖poisoned model - model retrained from scratch‖", KAPPA))


def _from_rollback(inputs: Inputs, plan: Plan, evidence: RecoveryArtifacts) -> bool:
    """Whether the steps lead away from the rollback model; those of some methods begin elsewhere."""
    method = METHODS.get(inputs.method)
    if method is None:
        return True
    if method.rolls_back:  # FedRecover begins earlier as published
        return not evidence.steps or evidence.steps[0]["round"] >= plan.rollback_round
    return method.start == "initial" and plan.rollback_round == 0


def _psi(facts: PoisonBounds, given: Assumptions) -> tuple[float, ...] | None:
    """ψ_0 … ψ_T where it bounds anything."""
    expansion = given.local_expansion()
    if expansion is None or facts.broken is not None or not facts.means:
        return None
    return distances(facts, expansion)


def _influence(plan: Plan, facts: PoisonBounds) -> Term:
    """Σ s_t: the poison to first order; where κ ≤ 1, poison.rollback is this and proved."""
    formula = "Σ s_t over the rounds before the rollback: the first-order influence"
    value = plain_sum(facts.sensitivity, plan.rollback_round)
    return Term(value, HEURISTIC, formula, ("no stretch of a distance counts",))


def _poison(plan: Plan, facts: PoisonBounds, psi: tuple[float, ...] | None, stop: int) -> Term:
    what = "rollback model - the same training without the malicious clients"
    formula = f"{POISON}; ‖{what if stop == plan.rollback_round else 'poisoned' + what[8:]}‖ ≤ ψ_{stop}"
    if stop == 0 and facts.broken != 0:
        return Term(0.0, SOUND, formula)  # M_0 has seen nobody
    if psi is None:
        return unknown(formula, MEANS, DRAWS, KAPPA, "no model was exchanged between rounds")
    return finite(Term(psi[stop], SOUND, formula, (MEANS, DRAWS, KAPPA, EXACT)))


def _begun(plan: Plan, evidence: RecoveryArtifacts) -> float:
    """How far from the rollback model recovery began: the length of the noise."""
    if evidence.start is None:
        return 0.0
    return apart(plan, evidence.start, plan.history.model(plan.rollback_round))


def _noise(inputs: Inputs, plan: Plan, evidence: RecoveryArtifacts, poison: Term) -> dict[str, Term]:
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


FIRST = "fedcrab certificate 1"  # lengths only; still verified
SECOND = "fedcrab certificate 2"  # without a term for a replay; still verified
FORMAT = "fedcrab certificate 3"
FORMATS = (FIRST, SECOND, FORMAT)
Steps = Sequence[Step | Mapping[str, Any]]


@dataclass(frozen=True)
class Certificate:
    """Statements about one recovery. Recomputed from history and models, it comes out the same."""

    inputs: Inputs
    subject: Mapping[str, Any]
    estimates: Mapping[str, Estimate]
    terms: Mapping[str, Term]
    signature: Mapping[str, str] | None = field(default=None)
    format: str = FORMAT

    @property
    def distance(self) -> Term:
        """The least proved bound of ‖recovered - retrained from scratch‖."""
        return conclusion(self.terms)[1]

    @property
    def poisoned(self) -> Term:
        """The least proved bound of ‖poisoned - retrained from scratch‖: that of doing nothing."""
        return doing_nothing(self.terms)[1]

    def _doing_nothing(self, nudge: float) -> dict[str, Any]:
        """Beside the conclusion: the bound of doing nothing, which of the two is nearer, what is declared."""
        by, nothing = doing_nothing(self.terms)
        ours, theirs = (rounded_up(term.value, nudge) for term in (self.distance, nothing))
        told = self.inputs.assumptions.to_table().items()
        declared = {name: value for name, value in told if value is not None and value is not False}
        known = ours is not None and theirs is not None
        return {
            "poisoned": {"by": by, **nothing.to_table(nudge)},
            "nearer": None if not known else "recovered" if (ours or 0.0) < (theirs or 0.0) else "poisoned",
            "declared": declared,
        }

    def to_table(self, nudge: float = 0.0) -> dict[str, Any]:
        """As plain values; ``nudge`` shifts every number before rounding, by a share of it."""
        by, best = conclusion(self.terms)
        inputs = self.inputs.to_table()
        beside = self._doing_nothing(nudge) if self.format != FIRST else {}
        return {
            "format": self.format,
            "inputs": inputs,
            "inputs_sha256": digests(inputs),
            "subject": dict(self.subject),
            "estimates": estimates_table(dict(self.estimates), partial(rounded_up, nudge=nudge)),
            "terms": {name: term.to_table(nudge) for name, term in self.terms.items()},
            "conclusion": {"by": by, **best.to_table(nudge), **beside},
            "signature": None if self.signature is None else dict(self.signature),
        }


def certify(
    plan: Plan,
    model: Vector | None = None,
    steps: Steps | None = None,
    *,
    method: str = "",
    aggregation: str | None = None,
    crab: Mapping[str, Any] | None = None,
    assumptions: Assumptions | None = None,
    estimate: bool = True,
    noise: Mapping[str, float] | None = None,
    start: Vector | None = None,
    retrained: Vector | None = None,
    retrained_steps: Steps | None = None,
    answers: Sequence[Answers] = (),
    batches: str = "history",
) -> Certificate:
    """State what can be proved of the recovery by this plan, and what is no more than a figure.

    ``model`` is what was recovered and ``steps`` how; without them the certificate is about what is
    planned. ``aggregation`` names the rule of the recovery (the history's, unless told) and ``crab`` its
    settings where it was crab. ``assumptions`` are declared; ``ConfigError`` where the ledger or each other
    refutes them. ``noise`` gives epsilon and delta, ``start`` the noised model that recovery began at.
    ``retrained`` and its steps are a training from scratch, where one was run. ``answers`` are what a
    :class:`fedcrab.recover.RecordedFleet` kept. ``batches`` are ``fresh`` where clients drew others in
    recovery than in the history: then, unless batches are full, their answers prove nothing.
    """
    inputs = Inputs.of(
        plan,
        method=method,
        aggregation=plan.history.charter.aggregation if aggregation is None else aggregation,
        crab=None if crab is None else {name: value for name, value in crab.items() if name != "everyone"},
        assumptions=assumptions or Assumptions(),
        estimate=estimate,
        noise=noise,
        batches=batches,
    )
    evidence = RecoveryArtifacts(
        model, tables(steps), start, retrained, tables(retrained_steps), tuple(answers)
    )
    return build_certificate(inputs, plan, evidence)


def build_certificate(
    inputs: Inputs, plan: Plan, evidence: RecoveryArtifacts, format: str = FORMAT
) -> Certificate:
    """The certificate that these inputs ask for; of the first format where an old one is to be checked.

    A declared constant that is refuted is refused. With ``since`` the training that a model is compared with
    keeps what named clients sent before it, which a retraining without them does not: then a retraining is
    no evidence.
    """
    if plan.since:
        evidence = replace(evidence, retrained=None, retrained_steps=None)
    refuse_refuted(inputs.assumptions, plan, evidence)
    guessed = estimates(plan, inputs.assumptions) if inputs.estimate else {}
    terms = certificate_terms(
        inputs, plan, evidence, guessed, vectors=format != FIRST, replayed=format == FORMAT
    )
    subject = _subject(plan, evidence)
    if format != FIRST:
        subject["answers"] = _sha(_names(plan, evidence)) if evidence.answers else None
    return Certificate(inputs, subject, guessed, terms, format=format)


def tables(steps: Steps | None) -> tuple[Mapping[str, Any], ...] | None:
    """Steps as plain values."""
    if steps is None:
        return None
    return tuple(step.to_table() if isinstance(step, Step) else step for step in steps)


def _subject(plan: Plan, evidence: RecoveryArtifacts) -> dict[str, Any]:
    history = plan.history
    layout = history.charter.layout
    snapshots = Snapshots(history.path / SNAPSHOTS)

    def of(model: Vector | None) -> str | None:
        return None if model is None else snapshots.hash_of(layout, model)

    return {
        "history": history.contents.head,
        "history_entries": history.contents.entries,
        "history_closed": history.closed,
        "rounds": len(history.rounds),
        "plan": _sha(_decision(plan)),
        "rollback_round": plan.rollback_round,
        "rollback_model": plan.model,
        "poisoned_model": history.rounds[-1].after,
        "start_model": of(evidence.start),
        "recovered_model": of(evidence.model),
        "steps": None if evidence.steps is None else _sha(evidence.steps),
        "retrained_model": of(evidence.retrained),
        "retrained_steps": None if evidence.retrained_steps is None else _sha(evidence.retrained_steps),
    }


def _names(plan: Plan, evidence: RecoveryArtifacts) -> list[Any]:
    """Every answer by the hashes of its vectors."""
    layout, snapshots = plan.history.charter.layout, Snapshots(plan.history.path / SNAPSHOTS)
    return [
        [
            answers.round,
            snapshots.hash_of(layout, answers.model),
            [*zip(answers.updates.clients, answers.updates.weights.tolist(), strict=True)],
            hashlib.sha256(answers.updates.vectors.tobytes()).hexdigest(),
            list(answers.errors),
            answers.model_error,
        ]
        for answers in evidence.answers
    ]


def _decision(plan: Plan) -> dict[str, Any]:
    """What was decided, without the numbers that led there: those may differ in their last bits."""
    left_out = ("sensitivity", "threshold", "cost", "shares", "poison_left", "warnings")
    return {name: value for name, value in plan.to_table().items() if name not in left_out}


def _sha(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=dict)
    return hashlib.sha256(text.encode()).hexdigest()


def certify_folder(
    folder: RecoveryFolder,
    history: History,
    *,
    assumptions: Assumptions,
    retrained: RecoveryFolder | None = None,
    noise: Mapping[str, float] | None = None,
    estimate: bool = True,
    decided: Plan | None = None,
) -> Certificate:
    """State what can be proved of the recovery in a folder.

    ``decided`` is its plan, where the caller has just run it; else the plan is made again from the summary.
    """
    asked = folder.request
    folder.check_history(history)
    chosen = decided or _decided(folder, history)
    inputs = Inputs.of(
        chosen,
        method=asked.get("method", ""),
        aggregation=history.charter.aggregation,
        crab={name: asked[name] for name in CRAB} if {*CRAB} <= {*asked} else None,
        assumptions=assumptions,
        estimate=estimate,
        noise=noise,
        batches=_batches(asked),
    )
    return build_certificate(inputs, chosen, folder.evidence(history, retrained))


def _batches(asked: Mapping[str, Any]) -> str:
    """Which batches clients drew, by a recovery's request: told in it, or what its method always had."""
    row = METHODS.get(str(asked.get("method", "")))
    return str(asked.get("batches", row.batches if row else "history"))


def _decided(folder: RecoveryFolder, history: History) -> Plan:
    told = folder.summary.get("plan")
    if not isinstance(told, Mapping) or not {*SETTINGS} <= {*told}:
        raise DamagedError(f"{folder.path / SUMMARY}: does not say what was decided")
    return plan(history, **{name: told[name] for name in (*SETTINGS, *OPTIONAL) if name in told})


def declared_in(folder: RecoveryFolder, key: Path | None = None) -> tuple[Assumptions, Assumptions]:
    """What the certificate that lies there declares: what is taken over, and what is left behind.

    Whoever is about to sign with a private ``key`` takes over only what that key has signed already: anybody
    else who can write the folder could have put a certificate there.
    """
    try:
        table = read_certificate(folder.path / NAME)
        declared = Inputs.from_table(table.get("inputs")).assumptions
    except (DamagedError, ConfigError):
        return Assumptions(), Assumptions()
    if key is None or is_signed_by(table, key):
        return declared, Assumptions()
    return Assumptions(), declared
