"""Path lengths: how far recovery and retraining move the model.

**Recovery**, ‖recovered - rollback model‖: planned from the ledger, bounded by the reported steps, and
measured. One step is at most as long as the aggregation rule allows for updates of lengths ℓ_c:

    fedavg, clipped-mean               Σ p_c·ℓ_c
    krum, multi-krum, geometric-median max ℓ_c           (a point in the convex hull of the updates)
    median                             √(2/n·Σ ℓ_c²)     (half of the clients exceed it in each coordinate)
    trimmed-mean                       √(Σ ℓ_c²)         (no coordinate exceeds the largest of the clients)

**Retraining**, ‖W_T - W_t*‖: how far the training without the malicious clients moves the model after the
rollback round. There are several bounds per round, and the smallest counts. The steps of a retraining that
was run give the best bound; the other bounds do not need one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

from fedcrab.certificate.assumptions import Assumptions
from fedcrab.certificate.poison import UNIT, PoisonBounds, Premises
from fedcrab.certificate.term import HEURISTIC, SOUND, Term, finite, unknown
from fedcrab.recover.crab import planned_lengths
from fedcrab.rollback.decision import Plan
from fedcrab.types import Vector
from fedcrab.vectors import norm

Reach = Callable[[Sequence[float], Sequence[float]], float]  # (examples, lengths) -> longest step
PLANNED = "Σ over replayed rounds of the longest length that a client is calibrated to"
TRAVELLED = "Σ over steps of what the rule can make of the updates' lengths; of the mean, Σ p_c·ℓ_c"
HULL = ("fedavg", "clipped-mean", "krum", "multi-krum", "geometric-median")  # rules within the updates' hull
MOVED = "‖recovered model - rollback model‖, measured"


def _mean(examples: Sequence[float], lengths: Sequence[float]) -> float:
    return sum(n * length for n, length in zip(examples, lengths, strict=True)) / sum(examples)


def _longest(_: Sequence[float], lengths: Sequence[float]) -> float:
    return max(lengths)


def _median(_: Sequence[float], lengths: Sequence[float]) -> float:
    return sqrt(2 / len(lengths) * sum(length**2 for length in lengths))


def _root_of_squares(_: Sequence[float], lengths: Sequence[float]) -> float:
    return sqrt(sum(length**2 for length in lengths))


REACHES: Mapping[str, Reach] = {
    "fedavg": _mean,
    "clipped-mean": _mean,
    "krum": _longest,
    "multi-krum": _longest,
    "geometric-median": _longest,
    "median": _median,
    "trimmed-mean": _root_of_squares,
}


def planned(plan: Plan, rule: str, crab: Mapping[str, Any] | None, reach: float) -> Term:
    """Return the bound before a recovery. It holds for any answers and examples, so it uses the longest."""
    assumes = ("recovery is crab with these settings", f"its rule is {rule}")
    if crab is None or rule not in HULL:
        return unknown(PLANNED, *assumes, "a rule that stays within the updates' hull")
    if crab["settle"]:
        return unknown(PLANNED, *assumes, "settle = 0: the last rounds are not calibrated to a known length")
    if rule in ("krum", "multi-krum"):  # if they need more answers than were selected, everyone is asked
        plan = replace(plan, replay=tuple((t, plan.askable(t)) for t, _ in plan.replay))
    lengths = planned_lengths(plan, crab["gap"])
    steps = [max((lengths[t][c] for c in clients), default=0.0) for t, clients in plan.replay]
    return Term(_with_rounding(steps, reach), SOUND, PLANNED, assumes)


def travelled(
    steps: Sequence[Mapping[str, Any]] | None, rule: str, reach: float, formula: str = TRAVELLED
) -> Term:
    """Return how far these steps can have moved the model, from their reported lengths."""
    assumes = ("the steps are as they were reported", f"their rule is {rule}")
    if steps is None or rule not in REACHES:
        return unknown(formula, *assumes)
    longest_step = REACHES[rule]
    legs = [longest_step(step["examples"], step["lengths"]) if step["lengths"] else 0.0 for step in steps]
    return Term(_with_rounding(legs, reach), SOUND, formula, assumes)


def _with_rounding(legs: Sequence[float], reach: float) -> float:
    """Return the sum of the legs plus the largest effect of float32 rounding."""
    length = 0.0
    for leg in legs:
        length += leg + 4 * UNIT * (reach + length + leg)
    return length


def moved(plan: Plan, model: Vector | None) -> Term:
    """Return the measured distance between the recovered model and the rollback model."""
    if model is None:
        return unknown(MOVED, "a recovered model")
    return Term(apart(plan, model, plan.history.model(plan.rollback_round)), SOUND, MOVED)


def apart(plan: Plan, one: Vector, other: Vector) -> float:
    """Return ‖one - other‖ over the trained numbers."""
    return norm(one.astype("float64") - other, plan.history.charter.layout.trained())


CONSTANTS = "rounds·K·η·G: no local step is longer than η·G"
LEDGER = "Σ (φ_t + λ·ψ_t): the honest update at M_t, known, and how much it can differ at W_t"
FADING = "φ_0·Σ κ^t: the same map in every round makes steps that grow by κ at most"
DESCENT = "√(η·rounds·(F(M_0) - F*)/(1 - ηL/2)): gradient descent spends its descent on its way"
SHORTEST = "Σ of the least of these in each round"
MEASURED = "Σ over the retraining's steps of what the rule can make of the updates' lengths"
SAME = "the same honest clients, examples and batches in every round (full batches)"
PLAIN = ("local steps are plain gradient steps", "G bounds the gradients", "a rule within the hull")
KAPPA = "κ bounds how much honest local training stretches a distance"


def retraining_terms(
    premises: Premises, estimated: Mapping[str, float], steps: Sequence[Mapping[str, Any]] | None
) -> dict[str, Term]:
    """Return every bound of the retraining's path; ``steps`` are those of a retraining that was run."""
    facts, given, first = premises.facts, premises.given, premises.plan.rollback_round
    flag = SOUND if given.gradient is not None else HEURISTIC
    legs = {
        "constants": _term(_constant_legs(facts, given, estimated), first, CONSTANTS, PLAIN, flag),
        "ledger": _term(_ledger_legs(premises), first, LEDGER, ("Ψ is a bound",)),
        "fading": _term(_fading_legs(premises), first, FADING, (SAME, KAPPA)),
        "shortest": _term(shortest_legs(premises), first, SHORTEST, ("Ψ is a bound", KAPPA)),
    }
    return {"measured": _measured(facts, first, steps), **legs, "descent": _descent(premises)}


def _measured(facts: PoisonBounds, first: int, steps: Sequence[Mapping[str, Any]] | None) -> Term:
    """Return the bound from a retraining's steps; those before the rollback bound the length of its model."""
    if steps is None:
        return travelled(None, facts.rule, facts.start, MEASURED)
    before = [step for step in steps if step["round"] < first]
    length_before = travelled(before, facts.rule, facts.start).value or 0.0
    return travelled(
        [step for step in steps if step["round"] >= first], facts.rule, facts.start + length_before, MEASURED
    )


def _term(
    legs: Sequence[float] | None, first: int, formula: str, assumes: tuple[str, ...], flag: str = SOUND
) -> Term:
    if legs is None:
        return unknown(formula, *assumes)
    return finite(Term(float(sum(legs[first:])), flag, formula, assumes))


def shortest_legs(premises: Premises) -> list[float] | None:
    """Return the smallest proven bound of ‖W_{t+1} - W_t‖ per round; None if there is none."""
    constant = _constant_legs(premises.facts, premises.given, {})
    found = (_ledger_legs(premises), _fading_legs(premises), constant)
    known = [legs for legs in found if legs is not None]
    return [min(legs) for legs in zip(*known, strict=True)] if known else None


def _constant_legs(
    facts: PoisonBounds, given: Assumptions, estimated: Mapping[str, float]
) -> list[float] | None:
    """Return K·η·G for each round with an honest client."""
    gradient = given.gradient if given.gradient is not None else estimated.get("gradient")
    if gradient is None or given.rate is None or given.most_steps is None or facts.rule not in HULL:
        return None
    leg = given.most_steps * given.rate * gradient
    rounding = 8 * UNIT * (facts.start + leg * len(facts.busy))
    return [leg + rounding if busy else 0.0 for busy in facts.busy]


def _ledger_legs(premises: Premises) -> list[float] | None:
    """‖A(W) - W‖ ≤ ‖A(M) - M‖ + λ‖M - W‖ ≤ φ + λ·ψ, with λ of :meth:`Assumptions.local_drift`."""
    facts, psi, drift = premises.facts, premises.psi, premises.given.local_drift()
    if psi is None or drift is None:
        return None
    rows = zip(facts.honest, psi[:-1], facts.reach, facts.busy, strict=True)
    return [phi + drift * far + 8 * UNIT * (reach + far) if busy else 0.0 for phi, far, reach, busy in rows]


def _fading_legs(premises: Premises) -> list[float] | None:
    """‖W_{t+1} - W_t‖ = ‖A(W_t) - A(W_{t-1})‖ ≤ κ^t·‖A(M_0) - M_0‖ = κ^t·φ_0."""
    facts, expansion = premises.facts, premises.given.local_expansion()
    if expansion is None or not premises.is_one_map:
        return None
    legs, leg, length = [], facts.honest[0], 0.0
    for _ in facts.busy:
        leg += 8 * UNIT * (facts.start + length + leg)
        legs.append(leg)
        length, leg = length + leg, expansion * leg
    return legs


def _descent(premises: Premises) -> Term:
    """F falls by η(1 - ηL/2)·‖∇F‖² per step, so Σ ‖∇F‖² is bounded, and Σ η‖∇F‖ by Cauchy-Schwarz.

    F at the rollback round is at most F(M_0), because the retraining descends. Convexity is not needed.
    """
    assumes = (SAME, "one local step a round", "η < 2/L", "F(M_0) - F* of the honest clients' own loss")
    facts, given, first = premises.facts, premises.given, premises.plan.rollback_round
    rate, smooth, gap = given.rate, given.smoothness, given.initial_gap
    if rate is None or smooth is None or gap is None or rate * smooth >= 2:
        return unknown(DESCENT, *assumes)
    if given.most_steps != 1 or not premises.is_one_map:
        return unknown(DESCENT, *assumes)
    rounds, everything = len(facts.busy) - first, len(facts.busy)
    value, whole = (sqrt(rate * n * gap / (1 - rate * smooth / 2)) for n in (rounds, everything))
    return finite(Term(value + rounds * 8 * UNIT * (facts.start + whole), SOUND, DESCENT, assumes))
