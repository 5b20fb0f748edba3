"""All bounds of ‖recovered - W_T‖, where W_T is the model trained from scratch.

parts       recovery's path + poison in the rollback model + retraining's path from there
kept        the same for each kept model instead of the rollback model, with ‖M̃ - M_t‖ measured
poisoned    through the poisoned model, without the path of the retraining
residual    if local training contracts to a fixed point
coupled     recovery and retraining round by round (:mod:`fedcrab.certificate.coupled_bound`)
replayed    the same for a replay (:mod:`fedcrab.certificate.replay_bound`)
anchored, enclosed    balls that contain the retraining (:mod:`fedcrab.certificate.enclosure`)
measured    the distance itself, if a retraining was run
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from fedcrab.certificate.assumptions import power
from fedcrab.certificate.ball import Ball
from fedcrab.certificate.coupled_bound import coupled_bound, coupled_by_lengths, last_step_residual
from fedcrab.certificate.document import Inputs
from fedcrab.certificate.enclosure import Problem, anchored, enclosed
from fedcrab.certificate.path_length import SAME, apart, shortest_legs
from fedcrab.certificate.poison import EXACT, UNIT, Premises
from fedcrab.certificate.replay_bound import last_replayed_residual, replayed_term
from fedcrab.certificate.term import SOUND, Term, finite, least, total, unknown
from fedcrab.recover.answers import Answers
from fedcrab.recover.folder import RecoveryArtifacts
from fedcrab.recover.replay_record import ReplayRecord
from fedcrab.rollback.decision import Plan
from fedcrab.types import Vector

Table = Mapping[str, Any]
ANCHORED = (
    "around the recovered model: D ← min(κD + ‖honest mean update there‖, D + retraining's step), "
    "D ≤ ‖recovered - M_t‖ + ψ_t"
)
NEAREST = "‖recovered - m‖ + R: a ball that holds the retraining, moved on by known answers and κ, C, ρ"
ENCLOSED = f"{NEAREST}; each client by what all its answers allow"
POISONED = "‖poisoned model - m‖ + R, of the same ball"
PSI = "Ψ is a bound"
REPORTED = "answers are as they were reported, and made with the history's epochs, batches and examples"
FULL = "full batches: local training is the same map in every round"
RESIDUAL = "the residual was measured at this model"


@dataclass(frozen=True, eq=False)
class Followed:
    """The steps of a recovery that bounds can follow."""

    by_crab: Sequence[Table] | None  # of crab with weighted means and the history's batches
    records: tuple[ReplayRecord, ...]  # of a replay
    start: float  # distance from the rollback model to the model that recovery started from


def distance_terms(
    premises: Premises,
    inputs: Inputs,
    evidence: RecoveryArtifacts,
    terms: Mapping[str, Term],
    *,
    answers: Sequence[Answers] | None,
    replayed: bool,
    met: bool,
) -> dict[str, Term]:
    """Return every bound of ‖recovered - W_T‖; ``terms`` are the terms computed so far.

    ``answers`` are those of recovery and history. Three settings give the terms of older formats: None as
    ``answers`` format 1, no ``replayed`` format 2, which has no term for a replay, and no ``met`` format 3,
    which uses only the nearest answer of each client.
    """
    plan, by_crab = premises.plan, inputs.crab is not None and inputs.aggregation == "fedavg"
    noise = terms["noise.length"].value if evidence.start is not None else 0.0
    followed = Followed(
        evidence.steps if by_crab and inputs.same_batches else None,
        records_of(evidence.steps) if replayed and inputs.same_batches else (),
        noise or 0.0,
    )
    found = {
        "distance.parts": _by_parts(evidence, terms),
        "distance.kept": _by_kept(premises, evidence),
        "distance.poisoned": _by_poisoned(plan, evidence, terms["poison.whole"]),
    }
    if replayed:
        found["distance.replayed"] = replayed_term(premises, followed.records, start=followed.start)
    if answers is None:
        found["distance.coupled"] = coupled_by_lengths(premises, followed.by_crab, start=followed.start)
    else:
        found |= vector_terms(premises, evidence, answers, followed, found["distance.poisoned"], met=met)
    return {
        **found,
        "distance.residual": _by_residual(premises, evidence),
        "distance.measured": _measured(plan, evidence, inputs.same_batches),
    }


def records_of(steps: Sequence[Table] | None) -> tuple[ReplayRecord, ...]:
    """Return the records of a replay's steps; empty for other methods."""
    return tuple(ReplayRecord.from_table(step["record"]) for step in steps or () if "record" in step)


def _by_parts(evidence: RecoveryArtifacts, terms: Mapping[str, Term]) -> Term:
    later = least({name: term for name, term in terms.items() if name.startswith("retraining.")})
    rest = later[1] if later else terms["retraining.constants"]
    formula = "recovery's path + poison in the rollback model + retraining's path from there"
    return total(formula, *_recovery(evidence, terms), terms["poison.rollback"], rest)


def _recovery(evidence: RecoveryArtifacts, terms: Mapping[str, Term]) -> list[Term]:
    """Return ‖recovered - rollback model‖: measured, or else planned (from the noised model, if any)."""
    if evidence.model is not None:
        return [terms["path.moved"]]
    return [terms["path.planned"], *([terms["noise.length"]] if evidence.start is not None else [])]


def _by_kept(premises: Premises, evidence: RecoveryArtifacts) -> Term:
    """‖M̃ - W_T‖ ≤ ‖M̃ - M_t‖ + ‖M_t - W_t‖ + ‖W_t - W_T‖, for any kept round t."""
    formula = "least over kept rounds of ‖recovered - M_t‖ + ψ_t + retraining's path from t"
    plan, psi, legs = premises.plan, premises.psi, shortest_legs(premises)
    if psi is None or legs is None or evidence.model is None:
        return unknown(formula, "a recovered model", PSI)
    history = plan.history
    ways = [apart(plan, evidence.model, history.model(t)) + psi[t] + sum(legs[t:]) for t in history.kept]
    return finite(Term(min(ways), SOUND, formula, (PSI,)))


def _by_poisoned(plan: Plan, evidence: RecoveryArtifacts, whole: Term) -> Term:
    """‖M̃ - W_T‖ ≤ ‖M̃ - M_T‖ + ψ_T, where the first is measured."""
    formula = "‖recovered - poisoned model‖, measured, + ψ of the whole training"
    if evidence.model is None:
        return unknown(formula, "a recovered model", *whole.assumes)
    distance = apart(plan, evidence.model, plan.history.final_model())
    return total(formula, Term(distance, SOUND, ""), whole)


def _by_residual(premises: Premises, evidence: RecoveryArtifacts) -> Term:
    """Both are near the fixed point W* of A: ‖x - W*‖ ≤ ‖A(x) - x‖/(1-κ), ‖W_T - W*‖ ≤ κ^T·‖M_0 - W*‖."""
    formula = "(‖honest update at the recovered model‖ + κ^T·φ_0)/(1-κ)"
    assumes = (SAME, "κ < 1: strongly convex", RESIDUAL, EXACT)
    facts, expansion, residual = premises.facts, premises.given.local_expansion(), premises.given.residual
    if expansion is None or expansion >= 1 or residual is None or evidence.model is None:
        return unknown(formula, *assumes)
    if not premises.is_one_map:
        return unknown(formula, *assumes)
    gap = 1 - expansion
    fading = power(expansion, len(facts.busy)) * facts.honest[0]
    rounding = 16 * UNIT * (facts.start + facts.honest[0] / gap + residual / gap)
    return finite(Term((residual + fading + rounding) / gap, SOUND, formula, assumes))


def _measured(plan: Plan, evidence: RecoveryArtifacts, same: bool) -> Term:
    formula = "‖recovered - retrained model‖, measured"
    if evidence.model is None or evidence.retrained is None:
        return unknown(formula, "a retraining that was run")
    own = () if same else ("it is meant, not one with the history's batches: it drew batches of its own",)
    assumes = ("the retraining is as it was reported", *own)
    return Term(apart(plan, evidence.model, evidence.retrained), SOUND, formula, assumes)


def vector_terms(
    premises: Premises,
    evidence: RecoveryArtifacts,
    answers: Sequence[Answers],
    followed: Followed,
    poisoned: Term,
    *,
    met: bool,
) -> dict[str, Term]:
    """Return distance.coupled, distance.anchored, distance.enclosed and poison.enclosed."""
    given, model = premises.given, evidence.model
    assumes, formula = (PSI, REPORTED, *((FULL,) if given.full_batch else ())), ENCLOSED if met else NEAREST
    problem = Problem.of(premises, answers, met=met)
    if problem is None:
        needs = (*assumes, "κ")
        return {
            "distance.coupled": _coupled(premises, followed, (), inf),
            "distance.anchored": unknown(ANCHORED, *needs, "a recovered model"),
            "distance.enclosed": unknown(formula, *needs, "a recovered model"),
            "poison.enclosed": unknown(POISONED, *needs),
        }
    rounds, last = range(len(premises.facts.busy)), problem.flat(premises.plan.history.final_model())
    residuals = [problem.residual(model, t) if model is not None else inf for t in rounds]
    end = inf if poisoned.value is None else poisoned.value
    found = {"distance.coupled": _coupled(premises, followed, residuals, end)}
    if model is None:
        whole = min(*(ball.reach(last) for ball in _last_balls(problem)), problem.psi[-1])
        return {
            **found,
            "distance.anchored": unknown(ANCHORED, *assumes, "a recovered model"),
            "distance.enclosed": unknown(formula, *assumes, "a recovered model"),
            "poison.enclosed": _sound(whole, POISONED, assumes),
        }
    free = last_step_residual(premises, followed.by_crab)
    free = min(free, last_replayed_residual(premises, followed.records))
    if given.residual is not None and premises.is_one_map:
        free, assumes = min(free, given.residual), (*assumes, RESIDUAL)
    gaps = anchored(problem, model, [min(r, free) for r in residuals])
    balls, own = _last_balls(problem, model, gaps), problem.flat(model)
    moved = apart(premises.plan, model, premises.plan.history.final_model())
    return {
        **found,
        "distance.anchored": _sound(gaps[-1], ANCHORED, assumes),
        "distance.enclosed": _sound(min(*(ball.reach(own) for ball in balls), gaps[-1]), formula, assumes),
        "poison.enclosed": _sound(
            min(*(ball.reach(last) for ball in balls), problem.psi[-1], gaps[-1] + moved), POISONED, assumes
        ),
    }


def _last_balls(problem: Problem, model: Vector | None = None, gaps: Sequence[float] = ()) -> list[Ball]:
    """Return balls that contain W_T: one from the nearest answers only, one from all answers.

    A smaller radius in one round may lead to a worse centre later, so neither ball is always the smaller.
    """
    problems = [problem, *([replace(problem, met=1)] if problem.met > 1 else [])]
    return [enclosed(each, model, gaps)[-1] for each in problems]


def _coupled(premises: Premises, followed: Followed, residuals: Sequence[float], end: float) -> Term:
    def residual(t: int) -> float:
        return residuals[t] if residuals else inf

    return coupled_bound(premises, followed.by_crab, start=followed.start, residual=residual, end=end)


def _sound(value: float, formula: str, assumes: tuple[str, ...]) -> Term:
    return finite(Term(value, SOUND, formula, assumes))
