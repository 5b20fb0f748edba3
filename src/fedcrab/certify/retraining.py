"""How far training without the malicious clients goes on after the rollback round: ‖W_T - W_t*‖.

Several bounds of its steps, the least of which counts, round by round. A retraining that was run says it
best; the others need none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from fedcrab.certify.assumptions import Assumptions
from fedcrab.certify.path import HULL, travelled
from fedcrab.certify.poison import UNIT, Facts
from fedcrab.certify.term import HEURISTIC, SOUND, Term, finite, unknown

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
    facts: Facts,
    psi: Sequence[float] | None,
    first: int,
    given: Assumptions,
    estimated: Mapping[str, float],
    steps: Sequence[Mapping[str, Any]] | None,
) -> dict[str, Term]:
    """Every bound that there are grounds for; ``first`` is the rollback round."""
    flag = SOUND if given.gradient is not None else HEURISTIC
    legs = {
        "constants": _term(_constant_legs(facts, given, estimated), first, CONSTANTS, PLAIN, flag),
        "ledger": _term(_ledger_legs(facts, psi, given), first, LEDGER, ("Ψ is a bound",)),
        "fading": _term(_fading_legs(facts, given), first, FADING, (SAME, KAPPA)),
        "shortest": _term(shortest_legs(facts, psi, given), first, SHORTEST, ("Ψ is a bound", KAPPA)),
    }
    return {"measured": _measured(facts, first, steps), **legs, "descent": _descent(facts, first, given)}


def _measured(facts: Facts, first: int, steps: Sequence[Mapping[str, Any]] | None) -> Term:
    """From the steps of a retraining; those before the rollback round tell how long its model is by then."""
    if steps is None:
        return travelled(None, facts.rule, facts.start, MEASURED)
    before = [step for step in steps if step["round"] < first]
    gone = travelled(before, facts.rule, facts.start).value or 0.0
    return travelled(
        [step for step in steps if step["round"] >= first], facts.rule, facts.start + gone, MEASURED
    )


def _term(
    legs: Sequence[float] | None, first: int, formula: str, assumes: tuple[str, ...], flag: str = SOUND
) -> Term:
    if legs is None:
        return unknown(formula, *assumes)
    return finite(Term(float(sum(legs[first:])), flag, formula, assumes))


def is_one_map(facts: Facts, given: Assumptions) -> bool:
    """Whether every round of the retraining applies the same map A, from M_0 on."""
    return facts.steady and given.full_batch and facts.means and facts.broken != 0


def shortest_legs(facts: Facts, psi: Sequence[float] | None, given: Assumptions) -> list[float] | None:
    """In each round the least of the proved bounds of ‖W_{t+1} - W_t‖."""
    found = (_ledger_legs(facts, psi, given), _fading_legs(facts, given), _constant_legs(facts, given, {}))
    known = [legs for legs in found if legs is not None]
    return [min(legs) for legs in zip(*known, strict=True)] if known else None


def _constant_legs(facts: Facts, given: Assumptions, estimated: Mapping[str, float]) -> list[float] | None:
    """K·η·G where anybody takes part."""
    gradient = given.gradient if given.gradient is not None else estimated.get("gradient")
    if gradient is None or given.rate is None or given.most_steps is None or facts.rule not in HULL:
        return None
    leg = given.most_steps * given.rate * gradient
    rounding = 8 * UNIT * (facts.start + leg * len(facts.busy))
    return [leg + rounding if busy else 0.0 for busy in facts.busy]


def _ledger_legs(facts: Facts, psi: Sequence[float] | None, given: Assumptions) -> list[float] | None:
    """‖A(W) - W‖ ≤ ‖A(M) - M‖ + λ‖M - W‖ ≤ φ + λ·ψ, λ how much an update differs between two models."""
    drift = given.local_drift()
    if psi is None or drift is None:
        return None
    rows = zip(facts.honest, psi[:-1], facts.reach, facts.busy, strict=True)
    return [phi + drift * far + 8 * UNIT * (reach + far) if busy else 0.0 for phi, far, reach, busy in rows]


def _fading_legs(facts: Facts, given: Assumptions) -> list[float] | None:
    """‖W_{t+1} - W_t‖ = ‖A(W_t) - A(W_{t-1})‖ ≤ κ^t·‖A(M_0) - M_0‖ = κ^t·φ_0."""
    expansion = given.local_expansion()
    if expansion is None or not is_one_map(facts, given):
        return None
    legs, leg, gone = [], facts.honest[0], 0.0
    for _ in facts.busy:
        leg += 8 * UNIT * (facts.start + gone + leg)
        legs.append(leg)
        gone, leg = gone + leg, expansion * leg
    return legs


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
    rounds, everything = len(facts.busy) - first, len(facts.busy)
    value, whole = (sqrt(rate * n * gap / (1 - rate * smooth / 2)) for n in (rounds, everything))
    return finite(Term(value + rounds * 8 * UNIT * (facts.start + whole), SOUND, DESCENT, assumes))
