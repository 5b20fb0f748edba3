"""Balls that contain the retraining: *anchored* around the recovered model, *enclosed* around another model.

**Anchored.** D_t bounds ‖M̃ - W_t‖, where M̃ is the recovered model. D_0 = ‖M̃ - M_0‖, and

    D_{t+1} = min(κ·D_t + r_t(M̃),  D_t + ‖W_{t+1} - W_t‖)
    D_t ≤ ‖M̃ - M_t‖ + ψ_t if M_t is kept, or t = T

r_t(M̃) = ‖A_t(M̃) - M̃‖ is measured in one honest round at M̃. Proof: ‖M̃ - A(W)‖ ≤ ‖M̃ - A(M̃)‖ + κ‖M̃ - W‖.

**Enclosed.** A ball (m, R) with ‖m - W_t‖ ≤ R starts at (M_0, 0), whatever the rollback. For every honest
client c of round t, y_c is the model with the smallest ρ‖m - y‖ + ε among those where the client's answer
u_c(y) is known:

    m' = Σ p_c·(y_c + u_c(y_c) + C·(m - y_c)),     R' = κR + Σ p_c·(ρ‖m - y_c‖ + ε_c)

If (M_t, ψ_t) or (M̃, D_t) has a smaller radius, it replaces (m, R). The bound is ‖M̃ - m_T‖ + R_T. Proof:
W' = Σ p_c·T_c(W), and T_c(W) = T_c(y) + (T_c(m) - T_c(y)) + (T_c(W) - T_c(m)). The second term is C·(m - y)
up to ρ‖m - y‖, and the third is at most κ‖W - m‖.

The same holds for every answer of a client: for each y, T_c(m) is in the ball of radius ρ‖m - y‖ + ε around
y + u_c(y) + C·(m - y). So it is in the intersection of these balls (:mod:`fedcrab.certificate.ball`), whose
centre and radius replace those of the single y. Each radius is first enlarged by 8 float32 units of
‖y‖ + ‖u_c(y)‖, because a rounding error moves a small intersection by its square root. Certificates before
format 4 use only the nearest y. With full batches y may be from any round. With sampled batches T_c is a
different map in each round, so only answers with the batches of round t count.

There are two alternatives for clients that were never asked, or only far from m. Either the other clients
replace them, and the ledger bounds the difference at M_t (:func:`coupled_bound.missing`, with ‖m - M_t‖ or
ψ_t as the distance). Or m stays, and R grows by ‖W_{t+1} - W_t‖. The smallest R' counts.

The retraining's server adds in float32, which adds 16 units of rounding per round of the sum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.certificate.ball import Ball, intersection
from fedcrab.certificate.coupled_bound import honest_examples, missing
from fedcrab.certificate.path_length import shortest_legs
from fedcrab.certificate.poison import GEOMETRY, UNIT, PoisonBounds, Premises
from fedcrab.recover.answers import Answers, stored_answers
from fedcrab.rollback.decision import Plan
from fedcrab.types import ClientId, Vector
from fedcrab.vectors import Matrix64

MOST_STORED = 2**28  # numbers of stored updates that are read: one gigabyte
MOST_GROUPS = 16  # groups of clients that are tried per round
MOST_MET = 12  # nearest answers per client and round whose balls are intersected
MOST_COMPARED = 2**33  # numbers read for that in total; larger models use fewer answers


@dataclass(frozen=True, eq=False)
class Place:
    """A model at which some clients' answers are known."""

    round: int
    model: Matrix64
    rows: Mapping[ClientId, int]
    updates: NDArray[np.float32]
    lengths: Matrix64
    size: float  # ‖model‖
    errors: Matrix64  # ε_c of each row: the error of its update, and the effect of the model's error

    def mean(self, clients: Sequence[ClientId], weights: Sequence[float]) -> Matrix64:
        """Return Σ weight·u_c."""
        rows = [self.rows[client] for client in clients]
        return np.asarray(np.array(weights) @ self.updates[rows].astype(np.float64))

    def length(self, clients: Sequence[ClientId], weights: Sequence[float]) -> float:
        """Return Σ weight·‖u_c‖."""
        return float(np.dot(weights, self.lengths[[self.rows[client] for client in clients]]))


@dataclass(frozen=True, eq=False)
class Answered:
    """A ball that contains a client's T_c(m)."""

    far: float  # its radius: ρ‖m - y‖ + ε, or less if several answers are intersected
    place: Place  # the nearest
    centre: Matrix64 | None = None  # None: y + u_c(y) + C·(m - y) of that place


@dataclass(frozen=True, eq=False)
class Problem:
    """What is known about the training without the malicious clients."""

    plan: Plan
    facts: PoisonBounds
    psi: Sequence[float]
    legs: Sequence[float]  # bounds of ‖W_{t+1} - W_t‖
    expansion: float
    affine: tuple[float, float]
    full_batch: bool
    places: tuple[Place, ...]
    met: int = 1  # answers per client and round that are intersected

    @classmethod
    def of(cls, premises: Premises, answers: Sequence[Answers], *, met: bool = True) -> Problem | None:
        """Return the problem; None if κ or ψ is unknown. Without ``met``, as before format 4."""
        plan, psi, given = premises.plan, premises.psi, premises.given
        expansion, affine, legs = given.local_expansion(), given.local_affine(), shortest_legs(premises)
        if psi is None or expansion is None or affine is None or legs is None:
            return None
        places = tuple(place_of(plan, found, affine) for found in answers)
        size = sum(len(rows.clients) for rows in plan.history.rounds) * plan.history.charter.layout.size
        most = min(MOST_MET, 1 + MOST_COMPARED // (MOST_MET * max(size, 1))) if met else 1
        return cls(plan, premises.facts, psi, legs, expansion, affine, given.full_batch, places, most)

    def flat(self, model: Vector) -> Matrix64:
        """Return the trained numbers of a model."""
        return _trained(self.plan, model)

    def kept(self) -> dict[int, Ball]:
        """Return (M_t, ψ_t) for each kept M_t and the last one."""
        history = self.plan.history
        balls = {t: Ball(self.flat(history.model(t)), self.psi[t]) for t in history.kept}
        return {**balls, len(history.rounds): Ball(self.flat(history.final_model()), self.psi[-1])}

    def usable(self, t: int) -> list[Place]:
        """Return the places whose answers can be used in round t."""
        return [place for place in self.places if self.full_batch or place.round == t]

    def residual(self, model: Vector, t: int) -> float:
        """Return r_t at this model; infinite unless every honest client of round t answered there."""
        point, everybody = self.flat(model), honest_examples(self.plan, t)
        whole, total, slack, left = sum(everybody.values()), np.zeros(len(point)), 0.0, dict(everybody)
        for place in self.usable(t):
            found = [client for client in left if client in place.rows]
            if found and np.array_equal(place.model, point):
                weights = [left.pop(client) / whole for client in found]
                total += place.mean(found, weights)
                rows = [place.rows[client] for client in found]
                slack += 4 * UNIT * place.length(found, weights) + float(np.dot(weights, place.errors[rows]))
        return inf if left or not everybody else float(np.linalg.norm(total)) + slack


def answers_of(plan: Plan, fresh: Sequence[Answers]) -> tuple[Answers, ...]:
    """Return the answers of a recovery, and those in the history if there are not too many.

    What a named client sent before ``since`` counts as honest; its other answers are left out.
    """
    history = plan.history
    rounds = [t for t in range(len(history.rounds)) if history.contents.has_updates(t)]
    stored = sum(len(history.rounds[t].clients) for t in rounds) * history.charter.layout.size
    found = [_without(a, plan.malicious) for a in fresh]
    for kept in stored_answers(history) if stored <= MOST_STORED else ():
        found.append(_without(kept, [c for c in plan.malicious if plan.is_malicious(c, kept.round)]))
    return tuple(answers for answers in found if answers.updates.clients)


def _without(answers: Answers, clients: Collection[ClientId]) -> Answers:
    """Return the answers without these clients, and their errors."""
    pairs = zip(answers.updates.clients, answers.errors, strict=True) if answers.errors else ()
    errors = tuple(error for client, error in pairs if client not in clients)
    return replace(answers, updates=answers.updates.without(clients), errors=errors)


def anchored(problem: Problem, model: Vector, residuals: Sequence[float]) -> list[float]:
    """Return D_0 … D_T around the recovered model; ``residuals`` are upper bounds of r_t(M̃)."""
    point, kept, facts = problem.flat(model), problem.kept(), problem.facts
    size, gap, gaps = float(np.linalg.norm(point)), inf, []
    for t in range(len(facts.busy) + 1):
        if t in kept:
            gap = min(gap, kept[t].reach(point))
        gaps.append(gap)
        if t < len(facts.busy) and facts.busy[t]:
            gap = min(problem.expansion * gap + residuals[t], gap + problem.legs[t])
            gap += 16 * UNIT * (size + gap)
    return gaps


def enclosed(problem: Problem, model: Vector | None = None, gaps: Sequence[float] = ()) -> list[Ball]:
    """Return balls that contain W_0 … W_T; ``gaps`` are those of :func:`anchored` around the model.

    The caller compares the last ball with (M_T, ψ_T) and (M̃, D_T).
    """
    kept, point = problem.kept(), None if model is None else problem.flat(model)
    ball, balls = Ball(problem.flat(problem.plan.history.initial_model()), 0.0), list[Ball]()
    for t, busy in enumerate(problem.facts.busy):
        others = [kept[t]] if t in kept else []
        others += [Ball(point, gaps[t])] if point is not None and len(gaps) else []
        ball = min((ball, *others), key=lambda b: b.radius)
        balls.append(ball)
        ball = _next(problem, ball, t, kept.get(t)) if busy else ball
    return [*balls, ball]


def _next(problem: Problem, ball: Ball, t: int, kept: Ball | None) -> Ball:
    """Return a ball that contains A_t of this one, from the clients that give the smallest radius."""
    everybody, rho = honest_examples(problem.plan, t), problem.affine[1]
    near = _by_client(problem, ball, t, everybody)
    entry = problem.plan.history.rounds[t]
    away = min(problem.psi[t], inf if kept is None else float(np.linalg.norm(ball.centre - kept.centre)))
    best, group, lost = problem.legs[t] + (1 - problem.expansion) * ball.radius, dict[ClientId, float](), 0.0
    for farthest in _sample(sorted({answered.far for answered in near.values()})):
        ours = {c: n for c, n in everybody.items() if c in near and near[c].far <= farthest}
        difference = missing(entry, ours, everybody, rho * away)
        growth = sum(n * near[c].far for c, n in ours.items()) / sum(ours.values()) + difference
        if growth < best:
            best, group, lost = growth, ours, difference
    if not group:
        return Ball(ball.centre, ball.radius + problem.legs[t])
    return _moved(problem, ball, {c: (n, near[c]) for c, n in group.items()}, lost)


def _sample(values: list[float]) -> list[float]:
    """Return at most MOST_GROUPS of these values, including the last."""
    every = -(-len(values) // MOST_GROUPS) if values else 1
    return values[::-1][::every]


def _by_client(
    problem: Problem, ball: Ball, t: int, clients: Collection[ClientId]
) -> dict[ClientId, Answered]:
    """Return the ball of each of these clients that has a usable answer."""
    known = dict[ClientId, list[tuple[float, Place]]]()
    for place in problem.usable(t):
        away = problem.affine[1] * float(np.linalg.norm(ball.centre - place.model))
        for client, row in place.rows.items():
            if client in clients:
                known.setdefault(client, []).append((away + float(place.errors[row]), place))
    return {client: _answered(problem, ball, client, places) for client, places in known.items()}


def _answered(problem: Problem, ball: Ball, client: ClientId, places: list[tuple[float, Place]]) -> Answered:
    far, nearest = min(places, key=lambda found: found[0])
    if problem.met < 2 or len(places) < 2:
        return Answered(far, nearest)
    few = sorted(places, key=lambda found: found[0])[: problem.met]
    common = intersection([_predicted(problem, ball, client, *found) for found in few])
    return Answered(common.radius, nearest, common.centre) if common.radius < far else Answered(far, nearest)


def _predicted(problem: Problem, ball: Ball, client: ClientId, far: float, place: Place) -> Ball:
    """Return the ball around y + u_c(y) + C·(m - y) that contains T_c(m)."""
    row = place.rows[client]
    centre = place.model + problem.affine[0] * (ball.centre - place.model) + place.updates[row]
    return Ball(centre, far + 8 * UNIT * (place.size + float(place.lengths[row])))


def _moved(
    problem: Problem, ball: Ball, clients: Mapping[ClientId, tuple[float, Answered]], lost: float
) -> Ball:
    """Return the next (m', R') from these clients, each with its examples and its ball."""
    groups = dict[tuple[int, bool], list[ClientId]]()
    for client, (_, found) in clients.items():
        groups.setdefault((id(found.place), found.centre is None), []).append(client)
    factor, whole = problem.affine[0], sum(n for n, _ in clients.values())
    centre, radius = np.zeros(len(ball.centre)), problem.expansion * ball.radius + lost
    size = float(np.linalg.norm(ball.centre)) + ball.radius
    for group in groups.values():
        place, weights = clients[group[0]][1].place, [clients[client][0] / whole for client in group]
        share = sum(weights)
        if clients[group[0]][1].centre is None:
            centre += share * (place.model + factor * (ball.centre - place.model))
            centre += place.mean(group, weights)
        radius += sum(w * clients[client][1].far for w, client in zip(weights, group, strict=True))
        size += share * place.size + place.length(group, weights)
    for n, found in clients.values():
        if found.centre is not None:
            centre += n / whole * found.centre
    return Ball(centre, radius + 8 * (1 + max(1.0, problem.expansion)) * UNIT * (size + radius))


def place_of(plan: Plan, answers: Answers, affine: tuple[float, float]) -> Place:
    """Return answers prepared for the bounds: trained numbers only, with ε_c.

    ε_c = ‖q - u‖ + (|1-C| + ρ)·‖ỹ - y‖ for an update q and a model ỹ that were stored with an error. The
    first error moves m' directly, and the second by (1-C)·(ỹ - y); ‖m - y‖ ≤ ‖m - ỹ‖ + ‖ỹ - y‖.
    """
    updates, model = answers.updates, _trained(plan, answers.model)
    rows = np.stack([_trained(plan, row).astype(np.float32) for row in updates.vectors])
    lengths = np.array([float(np.linalg.norm(row.astype(np.float64))) for row in rows])
    errors = np.array(answers.errors or [0.0] * len(rows)) * (1 + GEOMETRY)
    errors = errors + (abs(1 - affine[0]) + affine[1]) * answers.model_error
    places = {client: i for i, client in enumerate(updates.clients)}
    return Place(answers.round, model, places, rows, lengths, float(np.linalg.norm(model)), errors)


def _trained(plan: Plan, vector: NDArray[Any]) -> Matrix64:
    parts = plan.history.charter.layout.trained()
    return np.concatenate([vector[part] for part in parts] or [vector[:0]]).astype(np.float64)
