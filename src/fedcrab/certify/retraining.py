"""How far training without the malicious clients goes on after the rollback round: ‖W_T - W_t*‖.

Five bounds, the least of which counts. A retraining that was run says it best; the others need none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import Any

from fedcrab.certify.assumptions import Assumptions
from fedcrab.certify.path import HULL, travelled
from fedcrab.certify.poison import UNIT, Facts
from fedcrab.certify.term import HEURISTIC, SOUND, Term, finite, unknown

CONSTANTS = "rounds·K·η·G: no local step is longer than η·G"
LEDGER = "Σ (φ_t + (1+κ)·ψ_t): the honest update at M_t, known, and how much it can differ at W_t"
FADING = "φ_0·Σ κ^t: the same map in every round makes steps that grow by κ at most"
DESCENT = "√(η·rounds·(F(M_0) - F*)/(1 - ηL/2)): gradient descent spends its descent on its way"
SAME = "the same honest clients, examples and batches in every round (full batches)"


def retraining_terms(
    facts: Facts,
    psi: Sequence[float] | None,
    first: int,
    given: Assumptions,
    estimated: Mapping[str, float],
    steps: Sequence[Mapping[str, Any]] | None,
) -> dict[str, Term]:
    """Every bound that there are grounds for; ``first`` is the rollback round."""
    return {
        "measured": _measured(facts, first, steps),
        "constants": _constants(facts, first, given, estimated),
        "ledger": _ledger(facts, psi, first, given),
        "fading": _fading(facts, first, given),
        "descent": _descent(facts, first, given),
    }


def is_one_map(facts: Facts, given: Assumptions) -> bool:
    """Whether every round of the retraining applies the same map A, from M_0 on."""
    return facts.steady and given.full_batch and facts.rule == "fedavg" and facts.broken != 0


def _measured(facts: Facts, first: int, steps: Sequence[Mapping[str, Any]] | None) -> Term:
    later = None if steps is None else [step for step in steps if step["round"] >= first]
    return travelled(later, facts.rule, facts.start)


def _constants(facts: Facts, first: int, given: Assumptions, estimated: Mapping[str, float]) -> Term:
    assumes = ("local steps are plain gradient steps", "G bounds the gradients", "a rule within the hull")
    gradient = given.gradient if given.gradient is not None else estimated.get("gradient")
    if gradient is None or given.rate is None or given.most_steps is None or facts.rule not in HULL:
        return unknown(CONSTANTS, *assumes, "rate, most_steps and gradient")
    rounds = sum(facts.busy[first:])
    value = rounds * given.most_steps * given.rate * gradient
    flag = SOUND if given.gradient is not None else HEURISTIC
    return finite(Term(value + rounds * _rounding(facts, value), flag, CONSTANTS, assumes))


def _rounding(facts: Facts, gone: float) -> float:
    """What float32 sums can add to a step of a training that has gone this far."""
    return 8 * UNIT * (facts.start + gone)


def _ledger(facts: Facts, psi: Sequence[float] | None, first: int, given: Assumptions) -> Term:
    """‖A(W) - W‖ ≤ ‖A(M) - M‖ + ‖A(W) - A(M)‖ + ‖M - W‖ ≤ φ + (1+κ)·ψ."""
    expansion = given.local_expansion()
    if psi is None or expansion is None:
        return unknown(LEDGER, "Ψ is a bound")
    rows = list(zip(facts.honest, psi, facts.reach, facts.busy, strict=False))[first:]
    legs = [p + (1 + expansion) * far + 8 * UNIT * (reach + far) for p, far, reach, busy in rows if busy]
    return finite(Term(float(sum(legs)), SOUND, LEDGER, ("Ψ is a bound",)))


def _fading(facts: Facts, first: int, given: Assumptions) -> Term:
    """‖W_{t+1} - W_t‖ = ‖A(W_t) - A(W_{t-1})‖ ≤ κ^t·‖A(M_0) - M_0‖ = κ^t·φ_0."""
    expansion = given.local_expansion()
    if expansion is None or not is_one_map(facts, given):
        return unknown(FADING, SAME, "κ")
    legs = list(_fading_legs(facts, expansion))
    return finite(Term(float(sum(legs[first:])), SOUND, FADING, (SAME, "κ bounds local training")))


def _fading_legs(facts: Facts, expansion: float) -> Iterator[float]:
    leg, gone = facts.honest[0], 0.0
    for _ in facts.busy:
        leg += _rounding(facts, gone + leg)
        yield leg
        gone, leg = gone + leg, expansion * leg


def _descent(facts: Facts, first: int, given: Assumptions) -> Term:
    """F falls by η(1 - ηL/2)·‖∇F‖² a step, so Σ ‖∇F‖² is bounded, and Σ η‖∇F‖ by Cauchy-Schwarz.

    F at the rollback round is not above F(M_0): the retraining descended to there. No convexity is needed.
    """
    assumes = (SAME, "one local step a round", "η < 2/L", "F(M_0) - F* of the honest clients' own loss")
    rate, smooth, gap = given.rate, given.smoothness, given.initial_gap
    if rate is None or smooth is None or gap is None or rate * smooth >= 2:
        return unknown(DESCENT, *assumes)
    if given.most_steps != 1 or not is_one_map(facts, given):
        return unknown(DESCENT, *assumes)
    rounds = len(facts.busy) - first
    value = sqrt(rate * rounds * gap / (1 - rate * smooth / 2))
    return finite(Term(value + rounds * _rounding(facts, value), SOUND, DESCENT, assumes))
