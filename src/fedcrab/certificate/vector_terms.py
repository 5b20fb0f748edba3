"""The terms that follow recovery and retraining round by round, with vectors where there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from fedcrab.certificate.assumptions import SOUND, Assumptions, Term, finite, unknown
from fedcrab.certificate.coupled_bound import coupled_bound, last_step_residual
from fedcrab.certificate.enclosure import Problem, anchored, enclosed
from fedcrab.certificate.path_length import apart, is_one_map
from fedcrab.certificate.poison import PoisonBounds
from fedcrab.certificate.replay_bound import last_replayed_residual
from fedcrab.recover.answers import Answers
from fedcrab.recover.folder import RecoveryArtifacts
from fedcrab.recover.replay_record import ReplayRecord
from fedcrab.rollback.decision import Plan

ANCHORED = (
    "around the recovered model: D ← min(κD + ‖honest mean update there‖, D + retraining's step), "
    "D ≤ ‖recovered - M_t‖ + ψ_t"
)
ENCLOSED = "‖recovered - m‖ + R: a ball that holds the retraining, moved on by known answers and κ, C, ρ"
POISONED = "‖poisoned model - m‖ + R, of the same ball"
PSI = "Ψ is a bound"
REPORTED = "answers are as they were reported, and made with the history's epochs, batches and examples"
FULL = "full batches: local training is the same map in every round"
RESIDUAL = "the residual was measured at this model"


def vector_terms(
    plan: Plan,
    facts: PoisonBounds,
    psi: Sequence[float] | None,
    given: Assumptions,
    evidence: RecoveryArtifacts,
    answers: Sequence[Answers],
    by_crab: Sequence[Mapping[str, Any]] | None,
    begun: float,
    poisoned: Term,
    records: Sequence[ReplayRecord] = (),
) -> dict[str, Term]:
    """distance.coupled, distance.anchored, distance.enclosed and poison.enclosed."""
    assumes = (PSI, REPORTED, *((FULL,) if given.full_batch else ()))
    problem, model = Problem.of(plan, facts, psi, given, answers), evidence.model
    if problem is None:
        needs = (*assumes, "κ")
        return {
            "distance.coupled": coupled_bound(plan, facts, psi, given, by_crab, begun, _nothing, inf),
            "distance.anchored": unknown(ANCHORED, *needs, "a recovered model"),
            "distance.enclosed": unknown(ENCLOSED, *needs, "a recovered model"),
            "poison.enclosed": unknown(POISONED, *needs),
        }
    residuals = [problem.residual(model, t) if model is not None else inf for t in range(len(facts.busy))]
    end = inf if poisoned.value is None else poisoned.value
    found = {
        "distance.coupled": coupled_bound(
            plan, facts, psi, given, by_crab, begun, residuals.__getitem__, end
        ),
        "distance.anchored": unknown(ANCHORED, *assumes, "a recovered model"),
        "distance.enclosed": unknown(ENCLOSED, *assumes, "a recovered model"),
    }
    last = plan.history.final_model()
    if model is None:
        ball = enclosed(problem)[-1]
        return {
            **found,
            "poison.enclosed": _term(min(ball.reach(problem.flat(last)), problem.psi[-1]), POISONED, assumes),
        }
    free = last_step_residual(facts, given, plan, by_crab)
    free = min(free, last_replayed_residual(facts, given, records))
    measured = inf
    if given.residual is not None and is_one_map(facts, given):
        measured, assumes = given.residual, (*assumes, RESIDUAL)
    gaps = anchored(problem, model, [min(r, free, measured) for r in residuals])
    ball = enclosed(problem, model, gaps)[-1]
    whole = min(ball.reach(problem.flat(last)), problem.psi[-1], gaps[-1] + apart(plan, model, last))
    return {
        **found,
        "distance.anchored": _term(gaps[-1], ANCHORED, assumes),
        "distance.enclosed": _term(min(ball.reach(problem.flat(model)), gaps[-1]), ENCLOSED, assumes),
        "poison.enclosed": _term(whole, POISONED, assumes),
    }


def _term(value: float, formula: str, assumes: tuple[str, ...]) -> Term:
    return finite(Term(value, SOUND, formula, assumes))


def _nothing(_: int) -> float:
    return inf
