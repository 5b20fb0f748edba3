"""The certificate of a recovery: what is stated of it, bound by hashes to what it is about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fedcrab.certify import estimate as guesses
from fedcrab.certify.assumptions import Assumptions
from fedcrab.certify.estimate import Estimate
from fedcrab.certify.evidence import Evidence
from fedcrab.certify.inputs import Inputs, digests
from fedcrab.certify.statements import conclusion, statements
from fedcrab.certify.term import Term, rounded_up
from fedcrab.history.seal import SNAPSHOTS
from fedcrab.history.snapshots import Snapshots
from fedcrab.recover import Step
from fedcrab.rollback import Plan
from fedcrab.types import Vector

FORMAT = "fedcrab certificate 1"
Steps = Sequence[Step | Mapping[str, Any]]


@dataclass(frozen=True)
class Certificate:
    """Statements about one recovery. Recomputed from history and models, it comes out the same."""

    inputs: Inputs
    subject: Mapping[str, Any]
    estimates: Mapping[str, Estimate]
    terms: Mapping[str, Term]
    signature: Mapping[str, str] | None = field(default=None)

    @property
    def distance(self) -> Term:
        """The least proved bound of ‖recovered - retrained from scratch‖."""
        return conclusion(self.terms)[1]

    def to_table(self, nudge: float = 0.0) -> dict[str, Any]:
        """As plain values; ``nudge`` shifts every number before rounding, by a share of it."""
        by, best = conclusion(self.terms)
        inputs = self.inputs.to_table()
        return {
            "format": FORMAT,
            "inputs": inputs,
            "inputs_sha256": digests(inputs),
            "subject": dict(self.subject),
            "estimates": guesses.table(dict(self.estimates), partial(rounded_up, nudge=nudge)),
            "terms": {name: term.to_table(nudge) for name, term in self.terms.items()},
            "conclusion": {"by": by, **best.to_table(nudge)},
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
) -> Certificate:
    """State what can be proved of the recovery by this plan, and what is no more than a figure.

    ``model`` is what was recovered and ``steps`` how; without them the certificate is about what is
    planned. ``aggregation`` names the rule of the recovery (the history's, unless told) and ``crab`` its
    settings where it was crab. ``assumptions`` are declared, not checked. ``noise`` gives epsilon and
    delta, ``start`` the noised model that recovery began at. ``retrained`` and its steps are a training
    from scratch, where one was run.
    """
    inputs = Inputs.of(
        plan,
        method=method,
        aggregation=plan.history.charter.aggregation if aggregation is None else aggregation,
        crab=crab,
        assumptions=assumptions or Assumptions(),
        estimate=estimate,
        noise=noise,
    )
    evidence = Evidence(model, tables(steps), start, retrained, tables(retrained_steps))
    return made(inputs, plan, evidence)


def made(inputs: Inputs, plan: Plan, evidence: Evidence) -> Certificate:
    """The certificate that these inputs ask for."""
    guessed = guesses.estimates(plan, inputs.assumptions) if inputs.estimate else {}
    terms = statements(inputs, plan, evidence, guessed)
    return Certificate(inputs, _subject(plan, evidence), guessed, terms)


def tables(steps: Steps | None) -> tuple[Mapping[str, Any], ...] | None:
    """Steps as plain values."""
    if steps is None:
        return None
    return tuple(step.to_table() if isinstance(step, Step) else step for step in steps)


def _subject(plan: Plan, evidence: Evidence) -> dict[str, Any]:
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


def _decision(plan: Plan) -> dict[str, Any]:
    """What was decided, without the numbers that led there: those may differ in their last bits."""
    left_out = ("sensitivity", "threshold", "cost", "shares", "warnings")
    return {name: value for name, value in plan.to_table().items() if name not in left_out}


def _sha(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=dict)
    return hashlib.sha256(text.encode()).hexdigest()
