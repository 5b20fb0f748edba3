"""Certified replay: follow the centre of a ball that provably contains the retraining; ask where it grows.

    m ← M_s;  for each round t ≥ s:  m ← Σ p_c·(y_c + u_c(y_c) + C·(m - y_c))

The sum is over the honest participants c of round t. y_c is the model nearest to m for which c's answer is
known: a model of the history, with the stored update, or one at which c was asked here. The error per round
is at most Σ p_c·(ρ‖m - y_c‖ + ε_c), where ε_c is the rounding of what is stored. A client is asked, at m
itself, if its part of this error exceeds ``proof`` times the length of the first honest mean update. C and ρ
describe the clients' local training (:meth:`fedcrab.certificate.Assumptions.local_affine`). For convex losses
ρ < 1, and the bound in the certificate is useful.

With full batches local training is the same map in every round, and y_c can come from any of them. With
sampled batches only the answers of round t count. The plain replay, with its L-BFGS estimate, is nearer to
the retraining; this replay has the better proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedcrab.admission import no_updates
from fedcrab.aggregate.mean import Aggregate, shares, with_buffers
from fedcrab.errors import ConfigError
from fedcrab.recover.step import Pair, RoundUpdates, Step, renew
from fedcrab.rollback.decision import Plan
from fedcrab.types import ClientId, Fleet, Updates, Vector
from fedcrab.vectors import norm


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known about local training, and how much of a round's error may stay unknown."""

    share: float  # of the first honest mean update, per client
    centre: float  # C
    spread: float  # ρ
    full_batch: bool

    def __post_init__(self) -> None:
        for name, value in (("proof", self.share), ("centre", self.centre), ("spread", self.spread)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e6:
                raise ConfigError(f"{name} must be a number, got {value!r}")
        if self.share < 0 or self.spread < 0 or not isinstance(self.full_batch, bool):
            raise ConfigError(
                "proof and spread must be 0 or more and full_batch true or false, got "
                f"{self.share!r}, {self.spread!r} and {self.full_batch!r}"
            )

    @classmethod
    def of(cls, share: float, centre: float | None, spread: float | None, full_batch: bool) -> Proof:
        """Return the proof's settings; raise ``ConfigError`` if C or ρ is unknown, because it needs both."""
        if centre is None or spread is None:
            raise ConfigError(
                "a certified replay needs C and ρ of the clients' local training as centre and spread "
                "(Assumptions.local_affine); they are known for convex losses only"
            )
        return cls(share, centre, spread, full_batch)


def certified_replay(
    plan: Plan, fleet: Fleet, rule: Aggregate, epochs: int | None, after: Step | None, proof: Proof
) -> Iterator[Step]:
    """Yield the steps from the rollback model on; a step's pairs hold the last answer of each client."""
    history, first = plan.history, plan.rollback_round
    step = after or Step(first - 1, history.model(first))
    known = _StoredAnswers(plan, proof)
    for t in range(step.round + 1, len(history.rounds)):
        step = _step(plan, fleet, with_buffers(rule, history.charter.layout), epochs, step, t, known)
        yield step


class _StoredAnswers:
    """The models for which the history has answers, and the rounding errors of these answers."""

    def __init__(self, plan: Plan, proof: Proof) -> None:
        self.proof, self._plan = proof, plan
        history = plan.history
        first = history.updates(plan.rollback_round).only(plan.honest(plan.rollback_round))
        layout = history.charter.layout
        mean = (
            shares(first.weights) @ first.vectors.astype(np.float64)
            if first.clients
            else np.zeros(layout.size)
        )
        self.allowed = proof.share * norm(mean, layout.trained())
        self._models = dict[int, Vector]()

    def model(self, t: int) -> Vector:
        """Return M_t; it is read once."""
        if t not in self._models:
            self._models[t] = self._plan.history.model(t)
        return self._models[t]

    def nearest(self, model: Vector, t: int) -> dict[ClientId, tuple[float, int]]:
        """Return the least ρ‖m - y‖ + ε of a stored answer, with its round, per honest participant of t."""
        plan, history, proof = self._plan, self._plan.history, self.proof
        wanted, found = plan.honest(t), dict[ClientId, tuple[float, int]]()
        trained = history.charter.layout.trained()
        for r in range(len(history.rounds)) if proof.full_batch else (t,):
            here = [client for client in plan.honest(r) if client in wanted]
            if not here:
                continue
            lost = (abs(1 - proof.centre) + proof.spread) * history.model_error(r)
            away = proof.spread * norm(model - self.model(r), trained) + lost
            errors = dict(zip(history.rounds[r].clients, history.update_errors(r).tolist(), strict=True))
            for client in here:
                if client not in found or away + errors[client] < found[client][0]:
                    found[client] = (away + errors[client], r)
        return found


def _step(
    plan: Plan, fleet: Fleet, rule: Aggregate, epochs: int | None, before: Step, t: int, known: _StoredAnswers
) -> Step:
    history, model, proof = plan.history, before.model, known.proof
    layout, trained = history.charter.layout, history.charter.layout.trained()
    near = known.nearest(model, t)
    last = {client: pairs[-1] for client, pairs in before.pairs.items()} if proof.full_batch else {}
    away = {
        client: proof.spread * norm(model - last[client].moved, trained) for client in near if client in last
    }
    fresh = [client for client in away if away[client] < near[client][0]]  # nearer
    error = {client: min(found, away.get(client, found)) for client, (found, _) in near.items()}
    asked = [client for client in plan.askable(t) if error[client] > known.allowed]
    renewed = (
        renew(fleet, model, asked, round=t, epochs=epochs) if asked else RoundUpdates(no_updates(len(model)))
    )
    answers = dict(zip(renewed.updates.clients, renewed.updates.vectors, strict=True))
    examples = dict(zip(history.rounds[t].clients, history.rounds[t].examples.tolist(), strict=True))
    rows = dict[ClientId, tuple[Vector, float]]()
    stored = dict[int, dict[ClientId, Vector]]()
    for client, (_, r) in near.items():
        if client in answers:
            row = answers[client]
        elif client in fresh:
            row = _answer_at(last[client].changed, last[client].moved, model, proof.centre, trained)
        else:
            if r not in stored:
                updates = history.updates(r)
                stored[r] = dict(zip(updates.clients, updates.vectors, strict=True))
            row = _answer_at(stored[r][client], known.model(r), model, proof.centre, trained)
        rows[client] = (row, examples[client])
    used = replace(renewed, updates=Updates.of(rows) if rows else no_updates(len(model)))
    step = used.applied(model, rule, layout, t)
    pairs = {**before.pairs, **{client: (Pair(t, model, row),) for client, row in answers.items()}}
    return replace(step, pairs=pairs if proof.full_batch else {})


def _answer_at(
    update: Vector, there: Vector, here: Vector, centre: float, trained: Sequence[slice]
) -> Vector:
    """Return the update at m from that at y: y + u(y) + C·(m - y) - m. Buffers stay as sent."""
    row = np.array(update)
    for part in trained:
        row[part] = update[part] + (centre - 1) * (here[part].astype(np.float64) - there[part])
    return row
