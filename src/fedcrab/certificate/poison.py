"""Poison (ψ): how far the malicious clients can have moved each model from the training without them.

    ψ_0 = 0,   ψ_{t+1} = κ·ψ_t + s_t      bounds ‖M_t - W_t‖;   W_t is the same training without them

Proof. One round maps a model x to A_t(x) = Σ p_c·T_c(x) over the honest clients, where T_c is local training.
A_t multiplies distances by at most κ, because every T_c does. W_{t+1} = A_t(W_t). M_{t+1} = A_t(M_t) + e with
‖e‖ = s_t, whatever the malicious clients sent, because s_t = ‖I_t(all) - I_t(honest)‖ is this difference. So
‖M_{t+1} - W_{t+1}‖ ≤ s_t + ‖A_t(M_t) - A_t(W_t)‖ ≤ s_t + κ‖M_t - W_t‖. With κ = 1, Ψ = Σ s_t (Fraboni et al.,
"SIFU", AISTATS 2024). The proof needs three things: the aggregates are weighted means, nobody changed the
model between rounds, and local training draws the same batches in both trainings.

Servers add in float32, and ψ covers that. It does not cover rounding in the clients.

A history can partly show whether its aggregates were weighted means. The ledger contains the cosine of every
update with the applied aggregate, which must equal the cosine with the mean. If two consecutive models are
kept, their distance must equal the length of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from fedcrab.certificate.assumptions import Assumptions
from fedcrab.history import History
from fedcrab.history.records import RoundRecord
from fedcrab.rollback.decision import Plan
from fedcrab.rollback.influence import counted_rounds
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64, norm

CLOSE = 1e-4  # relative error of the direction and length of a float32 mean


def first_other_aggregate(history: History) -> int | None:
    """Return the first round whose aggregate cannot be the mean; None if there is none."""
    for entry in history.rounds:
        if not len(entry.clients) or entry.coordinates.sketched:
            continue
        mean = entry.coordinates.combine(range(len(entry.clients)), entry.examples / entry.examples.sum())
        slack = CLOSE * (1 + float(entry.norms.max()) / max(float(np.linalg.norm(mean)), 1e-300))
        if _cosine_error(entry, mean) > slack or _length_error(history, entry, mean) > slack:
            return entry.index
    return None


def _cosine_error(entry: RoundRecord, mean: Matrix64) -> float:
    """Return the largest difference between a recorded cosine and the cosine with the mean."""
    rows = np.array([_padded(entry.coordinates.row(c), len(mean)) for c in range(len(entry.clients))])
    scale = np.linalg.norm(rows, axis=1) * np.linalg.norm(mean)
    nonzero = scale > 0
    return float(np.abs(rows[nonzero] @ mean / scale[nonzero] - entry.cosines[nonzero]).max(initial=0.0))


def _padded(row: Matrix64, width: int) -> Matrix64:
    return np.pad(row, (0, width - len(row)))


def _length_error(history: History, entry: RoundRecord, mean: Matrix64) -> float:
    """Return the relative difference between the model's movement and the mean's length; 0 if unknown."""
    t, length = entry.index, float(np.linalg.norm(mean))
    last = t + 1 == len(history.rounds)
    next_kept = last or (t + 1 in history.kept and history.rounds[t + 1].start == entry.after)
    if t not in history.kept or not next_kept or not length:
        return 0.0
    before, after = history.model(t), history.final_model() if last else history.model(t + 1)
    trained = history.charter.layout.trained()
    rounding = 2.0**-23 * (norm(before, trained) + norm(after, trained))
    moved = norm(after.astype(np.float64) - before, trained)
    return max(0.0, abs(moved - length) - rounding) / length


UNIT = 2.0**-24  # unit roundoff of float32
EXACT = "honest clients compute exactly; the server's float32 sums are allowed for"
GEOMETRY = 1e-6  # relative error of the ledger's norms


@dataclass(frozen=True, slots=True)
class PoisonBounds:
    """What the ledger shows about each round, without assumptions."""

    sensitivity: tuple[float, ...]  # upper bounds of s_t
    honest: tuple[float, ...]  # upper bounds of φ_t = ‖A_t(M_t) - M_t‖
    reach: tuple[float, ...]  # upper bounds of ‖M_{t+1}‖
    steady: bool  # every round has the same honest clients with the same number of examples
    broken: int | None  # the first round that does not start from the model after the previous round
    busy: tuple[bool, ...]  # whether any honest client took part
    start: float  # ‖M_0‖
    rule: str  # the aggregation rule in the history
    other: int | None  # the first round whose aggregate cannot be the mean

    @property
    def means(self) -> bool:
        """Whether the aggregates are recorded as weighted means and nothing contradicts that."""
        return self.rule == "fedavg" and self.other is None


def poison_bounds(plan: Plan) -> PoisonBounds:
    """Return the bounds from the ledger of the plan's history."""
    history = plan.history
    found = counted_rounds(history, "all").influence(plan.malicious, plan.since)
    rows = zip(history.rounds, found.sensitivity.tolist(), found.honest.tolist(), strict=True)
    pairs = [_from_norms(e, plan) if e.coordinates.sketched else (s, phi) for e, s, phi in rows]
    moved = [float(e.examples @ e.norms / max(e.examples.sum(), 1e-300)) for e in history.rounds]
    start = norm(history.initial_model(), history.charter.layout.trained())
    honest = [_honest(entry, plan) for entry in history.rounds]
    return PoisonBounds(
        sensitivity=tuple(s * (1 + GEOMETRY) for s, _ in pairs),
        honest=tuple(phi * (1 + GEOMETRY) for _, phi in pairs),
        reach=tuple((start + np.cumsum(moved)).tolist()),
        steady=all(now == honest[0] for now in honest) and bool(honest[0]),
        broken=_first_break(history),
        busy=tuple(bool(now) for now in honest),
        start=start,
        rule=history.charter.aggregation,
        other=first_other_aggregate(history),
    )


def _from_norms(entry: RoundRecord, plan: Plan) -> tuple[float, float]:
    """Return bounds of s, P_U·(mean ‖u‖ over U + mean ‖u‖ over B), and of φ, from exact norms.

    For sketched rounds. U are the malicious clients, P_U is their share, and B are the honest ones.
    """
    bad = np.array([plan.is_malicious(client, entry.index) for client in entry.clients])
    weights = entry.examples / entry.examples.sum()
    share, malicious = float(weights[bad].sum()), float(weights[bad] @ entry.norms[bad])
    honest = float(weights[~bad] @ entry.norms[~bad]) / (1 - share) if (~bad).any() else 0.0
    return malicious + share * honest, honest


def _honest(entry: RoundRecord, plan: Plan) -> dict[ClientId, float]:
    rows = zip(entry.clients, entry.examples.tolist(), strict=True)
    return {client: examples for client, examples in rows if not plan.is_malicious(client, entry.index)}


def _first_break(history: History) -> int | None:
    after = history.charter.initial_model
    for entry in history.rounds:
        if entry.start != after:
            return entry.index
        after = entry.after
    return None


def distances(facts: PoisonBounds, expansion: float) -> tuple[float, ...]:
    """Return ψ_0 … ψ_T; W does not change in a round without an honest client, so its factor is 1."""
    psi = [0.0]
    for s, reach, busy in zip(facts.sensitivity, facts.reach, facts.busy, strict=True):
        now, factor = psi[-1], expansion if busy else 1.0
        rounding = 8 * UNIT * (reach + max(1.0, factor) * now)
        psi.append(factor * now + s + rounding if isfinite(now) else inf)
    return tuple(psi)


@dataclass(frozen=True, eq=False)
class Premises:
    """What every bound of a certificate starts from: the plan, its ledger, and the declared constants."""

    plan: Plan
    facts: PoisonBounds
    given: Assumptions
    psi: tuple[float, ...] | None  # ψ_0 … ψ_T; None if there is no bound

    @classmethod
    def of(cls, plan: Plan, given: Assumptions, facts: PoisonBounds | None = None) -> Premises:
        """Return the premises of a plan; ``facts`` are those of its ledger, if they are already computed."""
        facts, expansion = facts or poison_bounds(plan), given.local_expansion()
        unbounded = expansion is None or facts.broken is not None or not facts.means
        return cls(plan, facts, given, None if unbounded else distances(facts, expansion or 0.0))

    @property
    def is_one_map(self) -> bool:
        """Whether every round of the retraining applies the same map A, starting at M_0."""
        facts = self.facts
        return facts.steady and self.given.full_batch and facts.means and facts.broken != 0
