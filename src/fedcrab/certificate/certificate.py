"""The certificate of a recovery: its statements, with hashes of the history, the steps and the models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedcrab.certificate.assumptions import Assumptions, Estimate, estimates, estimates_table
from fedcrab.certificate.document import CRAB, NAME, Inputs, digests, is_signed_by, read_certificate
from fedcrab.certificate.refutation import refuse_refuted, refuse_unusable
from fedcrab.certificate.statements import certificate_terms, conclusion, doing_nothing
from fedcrab.certificate.term import Term, rounded_up
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

FIRST = "fedcrab certificate 1"  # from lengths only
SECOND = "fedcrab certificate 2"  # no term for a replay
THIRD = "fedcrab certificate 3"  # only the nearest answer of each client
FORMAT = "fedcrab certificate 4"  # earlier formats can still be verified
FORMATS = (FIRST, SECOND, THIRD, FORMAT)
Steps = Sequence[Step | Mapping[str, Any]]


@dataclass(frozen=True)
class Certificate:
    """Statements about one recovery. Anybody with the history and the models can recompute them.

    ``terms`` are the statements by name, ``inputs`` what they were computed from, ``subject`` the hashes of
    the history, the plan and the models, and ``estimates`` the constants that were not declared.
    """

    inputs: Inputs
    subject: Mapping[str, Any]
    estimates: Mapping[str, Estimate]
    terms: Mapping[str, Term]
    signature: Mapping[str, str] | None = field(default=None)
    format: str = FORMAT

    @property
    def distance(self) -> Term:
        """The smallest proven bound of ‖recovered - retrained from scratch‖."""
        return conclusion(self.terms)[1]

    @property
    def poisoned(self) -> Term:
        """The smallest proven bound of ‖poisoned - retrained from scratch‖: the bound without recovery."""
        return doing_nothing(self.terms)[1]

    def _doing_nothing(self, nudge: float) -> dict[str, Any]:
        """Return the bound without recovery, which of the two bounds is smaller, and what is declared."""
        by, nothing = doing_nothing(self.terms)
        recovered, poisoned = (rounded_up(term.value, nudge) for term in (self.distance, nothing))
        nearer = None
        if recovered is not None and poisoned is not None:
            nearer = "recovered" if recovered < poisoned else "poisoned"
        constants = self.inputs.assumptions.to_table().items()
        return {
            "poisoned": {"by": by, **nothing.to_table(nudge)},
            "nearer": nearer,
            "declared": {n: value for n, value in constants if value is not None and value is not False},
        }

    def to_table(self, nudge: float = 0.0) -> dict[str, Any]:
        """Return the certificate as plain values; every number is multiplied by 1 + ``nudge`` first."""
        by, best = conclusion(self.terms)
        inputs = self.inputs.to_table()
        without_recovery = self._doing_nothing(nudge) if self.format != FIRST else {}
        return {
            "format": self.format,
            "inputs": inputs,
            "inputs_sha256": digests(inputs),
            "subject": dict(self.subject),
            "estimates": estimates_table(dict(self.estimates), partial(rounded_up, nudge=nudge)),
            "terms": {name: term.to_table(nudge) for name, term in self.terms.items()},
            "conclusion": {"by": by, **best.to_table(nudge), **without_recovery},
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
    """Return a certificate: what is proven about the recovery by this plan, and what is only estimated.

    ``model`` is the recovered model and ``steps`` are its steps; without them the certificate is about the
    plan only. ``method`` is the name of the recovery method, ``aggregation`` the name of its rule (by
    default the history's), and ``crab`` has the settings of a recovery by crab. ``assumptions`` are the
    constants that you declare; ``estimate`` adds estimates of the others. ``noise`` has epsilon and delta,
    and ``start`` is the noised model that the recovery started from. ``retrained`` and ``retrained_steps``
    are a training from scratch, if there was one. ``answers`` are those of a
    :class:`fedcrab.recover.RecordedFleet`. ``batches`` is ``fresh`` if clients drew other batches than in
    the history; then their answers prove nothing, unless batches are full.

    Raises ``ConfigError`` if the ledger, the answers or other constants refute a declared constant, or if
    a constant is declared that nothing can refute.
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
    certificate = build_certificate(inputs, plan, evidence)
    refuse_unusable(inputs.assumptions)
    return certificate


def build_certificate(
    inputs: Inputs, plan: Plan, evidence: RecoveryArtifacts, format: str = FORMAT
) -> Certificate:
    """Return the certificate for these inputs; to verify an old certificate, in its ``format``.

    Raises ``ConfigError`` if a declared constant is refuted. If the plan has ``since``, the reference
    training includes what the named clients sent before that round. A retraining without them does not, so
    it is not used then.
    """
    if plan.since:
        evidence = replace(evidence, retrained=None, retrained_steps=None)
    refuse_refuted(inputs.assumptions, plan, evidence)
    guessed = estimates(plan, inputs.assumptions) if inputs.estimate else {}
    newer = {"replayed": format not in (FIRST, SECOND), "met": format == FORMAT}
    terms = certificate_terms(inputs, plan, evidence, guessed, vectors=format != FIRST, **newer)
    subject = _subject(plan, evidence)
    if format != FIRST:
        subject["answers"] = _sha(_answer_hashes(plan, evidence)) if evidence.answers else None
    return Certificate(inputs, subject, guessed, terms, format=format)


def tables(steps: Steps | None) -> tuple[Mapping[str, Any], ...] | None:
    """Return the steps as plain values."""
    if steps is None:
        return None
    return tuple(step.to_table() if isinstance(step, Step) else step for step in steps)


def _subject(plan: Plan, evidence: RecoveryArtifacts) -> dict[str, Any]:
    history = plan.history
    layout = history.charter.layout
    snapshots = Snapshots(history.path / SNAPSHOTS)

    def sha256(model: Vector | None) -> str | None:
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
        "start_model": sha256(evidence.start),
        "recovered_model": sha256(evidence.model),
        "steps": None if evidence.steps is None else _sha(evidence.steps),
        "retrained_model": sha256(evidence.retrained),
        "retrained_steps": None if evidence.retrained_steps is None else _sha(evidence.retrained_steps),
    }


def _answer_hashes(plan: Plan, evidence: RecoveryArtifacts) -> list[Any]:
    """Return every answer with hashes instead of its vectors."""
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
    """Return the decision without the computed numbers, whose last bits may differ between machines."""
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
    """Return the certificate of the recovery in a folder; like :func:`certify` otherwise.

    ``decided`` is its plan, if the caller has it; otherwise the plan is computed again from the summary.
    """
    request = folder.request
    folder.check_history(history)
    chosen = decided or _decided(folder, history)
    inputs = Inputs.of(
        chosen,
        method=request.get("method", ""),
        aggregation=history.charter.aggregation,
        crab={name: request[name] for name in CRAB} if {*CRAB} <= {*request} else None,
        assumptions=assumptions,
        estimate=estimate,
        noise=noise,
        batches=_batches(request),
    )
    certificate = build_certificate(inputs, chosen, folder.evidence(history, retrained))
    refuse_unusable(assumptions)
    return certificate


def _batches(request: Mapping[str, Any]) -> str:
    """Return which batches clients drew: from the recovery's request, or its method's default."""
    method = METHODS.get(str(request.get("method", "")))
    return str(request.get("batches", method.batches if method else "history"))


def _decided(folder: RecoveryFolder, history: History) -> Plan:
    saved = folder.summary.get("plan")
    if not isinstance(saved, Mapping) or not {*SETTINGS} <= {*saved}:
        raise DamagedError(f"{folder.path / SUMMARY}: does not contain the plan of the recovery")
    return plan(history, **{name: saved[name] for name in (*SETTINGS, *OPTIONAL) if name in saved})


def declared_in(folder: RecoveryFolder, key: Path | None = None) -> tuple[Assumptions, Assumptions]:
    """Return the assumptions of the certificate in a folder: those to reuse, and those to ignore.

    Before signing with a private ``key``, only assumptions that this key has already signed are reused,
    because anybody who can write to the folder could have put another certificate there.
    """
    try:
        table = read_certificate(folder.path / NAME)
        declared = Inputs.from_table(table.get("inputs")).assumptions
    except (DamagedError, ConfigError):
        return Assumptions(), Assumptions()
    if key is None or is_signed_by(table, key):
        return declared, Assumptions()
    return Assumptions(), declared
