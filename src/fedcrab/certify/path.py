"""How far recovery moved the model: before it, from the ledger; after it, from its steps; and measured.

The weighted mean moves the model by at most the mean of the updates' lengths. Other rules by more:

    fedavg, clipped-mean               Σ p_c·ℓ_c
    krum, multi-krum, geometric-median max ℓ_c           (a point within the hull of the updates)
    median                             √(2/n·Σ ℓ_c²)     (half of the clients exceed it, number by number)
    trimmed-mean                       √(Σ ℓ_c²)         (no number is above the largest of the clients')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Any

from fedcrab.certify.poison import UNIT
from fedcrab.certify.term import SOUND, Term, unknown
from fedcrab.recover.crab import planned_lengths
from fedcrab.rollback import Plan
from fedcrab.types import Vector
from fedcrab.vectors import norm

Reach = Callable[[Sequence[float], Sequence[float]], float]  # (examples, lengths) -> how far one step goes
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


def _together(_: Sequence[float], lengths: Sequence[float]) -> float:
    return sqrt(sum(length**2 for length in lengths))


REACHES: Mapping[str, Reach] = {
    "fedavg": _mean,
    "clipped-mean": _mean,
    "krum": _longest,
    "multi-krum": _longest,
    "geometric-median": _longest,
    "median": _median,
    "trimmed-mean": _together,
}


def planned(plan: Plan, rule: str, crab: Mapping[str, Any] | None, reach: float) -> Term:
    """Before recovery: whoever answers, and with however many examples (so the longest, not the mean)."""
    assumes = ("recovery is crab with these settings", f"its rule is {rule}")
    if crab is None or rule not in HULL:
        return unknown(PLANNED, *assumes, "a rule that stays within the updates' hull")
    if crab["settle"]:
        return unknown(PLANNED, *assumes, "settle = 0: the last rounds are not calibrated to a known length")
    lengths = planned_lengths(plan, crab["gap"])
    steps = [max((lengths[t][c] for c in clients), default=0.0) for t, clients in plan.replay]
    return Term(_with_rounding(steps, reach), SOUND, PLANNED, assumes)


def travelled(
    steps: Sequence[Mapping[str, Any]] | None, rule: str, reach: float, formula: str = TRAVELLED
) -> Term:
    """How far these steps can have gone, from the lengths that they report."""
    assumes = ("the steps are as they were reported", f"their rule is {rule}")
    if steps is None or rule not in REACHES:
        return unknown(formula, *assumes)
    far = REACHES[rule]
    legs = [far(step["examples"], step["lengths"]) if step["lengths"] else 0.0 for step in steps]
    return Term(_with_rounding(legs, reach), SOUND, formula, assumes)


def _with_rounding(legs: Sequence[float], reach: float) -> float:
    """The legs, and what float32 sums can add to them."""
    gone = 0.0
    for leg in legs:
        gone += leg + 4 * UNIT * (reach + gone + leg)
    return gone


def moved(plan: Plan, model: Vector | None) -> Term:
    """Measured: the two models are there."""
    if model is None:
        return unknown(MOVED, "a recovered model")
    return Term(apart(plan, model, plan.history.model(plan.rollback_round)), SOUND, MOVED)


def apart(plan: Plan, one: Vector, other: Vector) -> float:
    """‖one - other‖ over the trained numbers."""
    return norm(one.astype("float64") - other, plan.history.charter.layout.trained())
