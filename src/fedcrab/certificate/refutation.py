"""Refutation: declared constants that the ledger, the models, the answers or other constants contradict.

Honest clients take K local steps of rate η along gradients of at most G, so no update is longer than K·η·G.
With full batches local training is the same map in every round, so an update changes by at most λ times the
distance of two models. A smooth loss has ‖∇F‖² ≤ 2L·(F - F*). A strongly convex one has
μ·‖x - y‖ ≤ ‖∇f(x)‖ + ‖∇f(y)‖ ≤ 2G. If one of these is violated, either a constant is wrong or a client that
is assumed honest is not. In both cases nothing can be stated. A constant that is not refuted may still be
wrong.

Answers of clients can also refute a constant, at no cost. If the declared constants are true, the training
of an honest client satisfies ‖T(x) - T(y) - C·(x-y)‖ ≤ ρ‖x-y‖ (:meth:`Assumptions.local_affine`). So its
updates differ by at most λ‖x-y‖, with λ = |1-C| + ρ. The length of every fresh answer û at x_t is known, and
the ledger contains that of u at M_t and ‖x_t - M_t‖:

    |‖û_c‖ - ‖u_c‖| ≤ λ·‖x_t - M_t‖

If the vectors of answers were kept, the first inequality is checked itself, for the same client and batches.
One violation refutes the constants, the same batches or the honesty of that client, and it cannot be known
which. Every bound with κ needs all three, so none is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedcrab.certificate.assumptions import Assumptions, power
from fedcrab.certificate.enclosure import Place, place_of
from fedcrab.certificate.path_length import apart
from fedcrab.certificate.poison import UNIT, PoisonBounds, Premises
from fedcrab.certificate.term import HEURISTIC, Term, unknown
from fedcrab.errors import ConfigError
from fedcrab.recover.answers import Answers
from fedcrab.recover.folder import RecoveryArtifacts
from fedcrab.rollback.decision import Plan
from fedcrab.types import ClientId

SLACK = 1e-3  # relative error of a bound from the clients' float32 arithmetic
USUAL_STEPS = 1000  # whose rounding is covered if the number of steps is not declared


def refuse_refuted(given: Assumptions, plan: Plan, evidence: RecoveryArtifacts | None = None) -> None:
    """Raise ``ConfigError`` for the first constant that is refuted."""
    if sentence := next(refutations(given, plan, evidence or RecoveryArtifacts()), None):
        raise ConfigError(sentence)


def refuse_unusable(given: Assumptions) -> None:
    """Raise ``ConfigError`` for a gradient bound without the constants that it is used and checked with."""
    if given.gradient is not None and (given.rate is None or given.most_steps is None):
        raise ConfigError(
            f"gradient is declared as {given.gradient:g} without rate and most_steps, so it can be neither "
            "used nor checked; declare those too, or withdraw it (gradient=null)"
        )


def refutations(given: Assumptions, plan: Plan, evidence: RecoveryArtifacts) -> Iterator[str]:
    """Yield one sentence for each declared constant that is refuted."""
    yield from _expansion(given)
    yield from _residual_gradient(given)
    if given == Assumptions():
        return
    premises = Premises.of(plan, given)
    yield from _gradient(premises)
    yield from _spread(given, plan)
    yield from _drift(premises)
    yield from _gaps(premises, evidence)
    yield from _residual(premises, evidence)


def _expansion(given: Assumptions) -> Iterator[str]:
    """κ below q^K, q = max(|1 - ημ|, |1 - ηL|): a smaller κ requires a larger μ."""
    kappa, eta, low, high = given.expansion, given.rate, given.convexity, given.smoothness
    if kappa is None or eta is None or low is None or high is None:
        return
    one = max(abs(1 - eta * low), abs(1 - eta * high))
    steps = given.fewest_steps if one < 1 else given.most_steps or 1
    least = None if steps is None else power(one, steps)
    if least is not None and kappa < least * (1 - SLACK):
        yield (
            f"expansion is declared as {kappa:g}, but rate {eta:g}, convexity {low:g} and smoothness "
            f"{high:g} give {least:.6g}; declare a larger convexity if it is known, or withdraw it "
            "(convexity=null)"
        )


def _residual_gradient(given: Assumptions) -> Iterator[str]:
    """‖Σ p_c·u_c‖ ≤ K·η·G."""
    longest = _longest(given)
    if longest is not None and given.residual is not None and given.residual > longest * (1 + SLACK):
        yield (
            f"residual is declared as {given.residual:g}, but rate, most_steps and gradient allow updates of "
            f"at most {longest:.6g}"
        )


def _longest(given: Assumptions) -> float | None:
    """Return K·η·G, the length of the longest possible update."""
    if given.gradient is None or given.rate is None or given.most_steps is None:
        return None
    return given.most_steps * given.rate * given.gradient


def _rounding(given: Assumptions, reach: float) -> float:
    """Return the largest rounding error of an update: each local step rounds a model of this length."""
    return 4 * UNIT * (given.most_steps or USUAL_STEPS) * reach


def _gradient(premises: Premises) -> Iterator[str]:
    """‖u_c‖ ≤ K·η·G for every honest update."""
    given = premises.given
    allowed = _longest(given)
    if allowed is None or given.rate is None or given.most_steps is None:
        return
    longest, client, t = max(_honest_norms(premises.plan), default=(0.0, "", 0))
    if longest > allowed * (1 + SLACK) + _rounding(given, premises.facts.reach[-1]):
        least = longest / (given.rate * given.most_steps)
        yield (
            f"gradient is declared as {given.gradient:g}, but client {client} moved by {longest:.6g} in "
            f"round {t}, which needs gradients of {least:.6g} with this rate and these steps; declare at "
            "least that, or name the client malicious"
        )


def _honest_norms(plan: Plan) -> Iterator[tuple[float, ClientId, int]]:
    bad = frozenset(plan.malicious)
    for entry in plan.history.rounds:
        for client, length in zip(entry.clients, entry.norms.tolist(), strict=True):
            if client not in bad:
                yield length, client, entry.index


def _spread(given: Assumptions, plan: Plan) -> Iterator[str]:
    """μ·‖M_0 - M_t‖ ≤ 2G, wherever one honest client trained at both."""
    if given.convexity is None or given.convexity <= 0 or given.gradient is None:
        return
    history, bad = plan.history, frozenset(plan.malicious)
    first = {*history.rounds[0].clients} - bad
    kept = [t for t in history.kept if first & {*history.rounds[t].clients}]
    far = max((apart(plan, history.model(t), history.initial_model()) for t in kept), default=0.0)
    if given.convexity * far * (1 - SLACK) > 2 * given.gradient:
        yield (
            f"gradient is declared as {given.gradient:g} and convexity as {given.convexity:g}, but clients "
            f"trained at models with a distance of {far:.6g}, where gradients differ by "
            f"{given.convexity * far:.6g} or more"
        )


def _drift(premises: Premises) -> Iterator[str]:
    """|‖u_c(M_t)‖ - ‖u_c(M_s)‖| ≤ λ·‖M_t - M_s‖ for each honest client whose training is one map."""
    plan, facts, given = premises.plan, premises.facts, premises.given
    drift = given.local_drift()
    if drift is None or not given.full_batch or not facts.means or facts.broken is not None:
        return
    path = np.concatenate([[0.0], np.cumsum([_moved(plan, t) for t in range(len(facts.busy))])])
    before = dict[ClientId, tuple[float, int]]()
    for length, client, t in _honest_norms(plan):
        earlier, s = before.get(client, (length, t))
        before[client] = (length, t)
        far = float(path[t] - path[s])
        allowed = drift * far + SLACK * (length + earlier) + _rounding(given, facts.reach[t])
        if abs(length - earlier) > allowed:
            yield (
                f"full batches and a drift of {drift:.6g} are declared (from rate, smoothness, convexity, "
                f"steps or expansion), but client {client} moved by {earlier:.6g} in round {s} and by "
                f"{length:.6g} in round {t}, at models with a distance of at most {far:.6g}; "
                "declare other constants, or name the client malicious"
            )


def _moved(plan: Plan, t: int) -> float:
    """Return ‖M_{t+1} - M_t‖, the length of the mean; for a sketched round, the mean of the lengths."""
    entry = plan.history.rounds[t]
    if not len(entry.clients):
        return 0.0
    shares = entry.examples / entry.examples.sum()
    if entry.coordinates.sketched:
        return float(shares @ entry.norms)
    return float(np.linalg.norm(entry.coordinates.combine(range(len(entry.clients)), shares)))


def _gaps(premises: Premises, evidence: RecoveryArtifacts) -> Iterator[str]:
    """F - F* ≥ ‖∇F‖²/2L, and ‖∇F‖ = φ/η if a round is one full-batch step of all honest clients."""
    plan, facts, given = premises.plan, premises.facts, premises.given
    rate, smooth = given.rate, given.smoothness
    if rate is None or smooth is None or given.most_steps != 1 or not premises.is_one_map:
        return
    places = {"initial_gap": 0} | ({"rollback_gap": plan.rollback_round} if evidence.start is None else {})
    for name, t in places.items():
        if plan.history.rounds[t].coordinates.sketched:
            continue  # only an upper bound of φ is known
        gap, noise = getattr(given, name), _rounding(given, facts.reach[t])
        steep = max(0.0, facts.honest[t] * (1 - SLACK) - noise) / rate
        if gap is not None and gap < steep**2 / (2 * smooth):
            yield (
                f"{name} is declared as {gap:g}, but the honest gradient there has a length of {steep:.6g}, "
                f"so a loss of smoothness {smooth:g} can fall by {steep**2 / (2 * smooth):.6g}"
            )


def _residual(premises: Premises, evidence: RecoveryArtifacts) -> Iterator[str]:
    """‖A(M̃) - M̃‖ ≥ φ_t - λ·‖M̃ - M_t‖ for every kept t."""
    plan, facts, given = premises.plan, premises.facts, premises.given
    drift = given.local_drift()
    if given.residual is None or drift is None or evidence.model is None or not premises.is_one_map:
        return
    for t in (t for t in plan.history.kept if not plan.history.rounds[t].coordinates.sketched):
        far = apart(plan, evidence.model, plan.history.model(t))
        least = facts.honest[t] * (1 - SLACK) - drift * far - _rounding(given, facts.reach[t])
        if given.residual < least:
            yield (
                f"residual is declared as {given.residual:g}, but round {t} had an honest mean of "
                f"{facts.honest[t]:.6g} at a distance of {far:.6g}, so the residual is at least {least:.6g}"
            )
            return


ANSWERS = (
    "largest ratio of what two answers of one client differ by to what the declared constants allow; above 1 "
    "it refutes them, or the client's honesty"
)
CLOSE = 1e-4  # relative difference that two answers at the same model may have
Affine = tuple[float, float]  # C and ρ
Found = tuple[float, ClientId, int]  # ratio, client, round


def answers_refute(
    premises: Premises, steps: Sequence[Mapping[str, Any]] | None, answers: Sequence[Answers]
) -> tuple[Term, bool]:
    """Return the largest ratio as a term, and whether it refutes the declared constants."""
    affine = premises.given.local_affine()
    if affine is None or not premises.facts.busy:
        return unknown(ANSWERS, "κ", "fresh answers"), False
    found = [*_by_lengths(premises, affine, steps or ()), *_by_vectors(premises, affine, answers)]
    if not found:
        return unknown(ANSWERS, "fresh answers"), False
    ratio, client, t = max(found)
    if ratio <= 1:
        return Term(ratio, HEURISTIC, ANSWERS), False
    refuted = f"refuted by client {client!r} in round {t}: the declared constants, its batches or its honesty"
    return Term(ratio, HEURISTIC, ANSWERS, (refuted,)), True


def _by_lengths(premises: Premises, affine: Affine, steps: Sequence[Mapping[str, Any]]) -> Iterator[Found]:
    facts, drift = premises.facts, abs(1 - affine[0]) + affine[1]
    for step in steps:
        t = step["round"]
        if "measured" not in step or not 0 <= t < len(facts.busy):
            continue
        entry, far = premises.plan.history.rounds[t], step["measured"]["apart"]
        recorded = dict(zip(entry.clients, entry.norms.tolist(), strict=True))
        for client, length in zip(step["clients"], step["renewed"] or step["lengths"], strict=True):
            if client in recorded:
                slack = CLOSE * (length + recorded[client]) + 32 * UNIT * (facts.reach[t] + far)
                yield abs(length - recorded[client]) / max(drift * far + slack, 1e-300), client, t


def _by_vectors(premises: Premises, affine: Affine, answers: Sequence[Answers]) -> Iterator[Found]:
    """Compare every answer with the client's first and previous ones for the same batches."""
    facts, given = premises.facts, premises.given
    earlier = dict[tuple[ClientId, int], tuple[Place, ...]]()
    for place in (place_of(premises.plan, found, affine) for found in answers):
        for client in place.rows:
            key = (client, -1 if given.full_batch else place.round)
            known = earlier.get(key, ())
            for other in known:
                yield _ratio(place, other, client, affine, facts), client, place.round
            earlier[key] = (*known[:1], place)


def _ratio(one: Place, other: Place, client: ClientId, affine: Affine, facts: PoisonBounds) -> float:
    moved = one.model - other.model
    first, second = (p.updates[p.rows[client]].astype(np.float64) for p in (one, other))
    difference = float(np.linalg.norm((1 - affine[0]) * moved + first - second))
    lengths = one.lengths[one.rows[client]] + other.lengths[other.rows[client]]
    errors = one.errors[one.rows[client]] + other.errors[other.rows[client]]
    slack = CLOSE * lengths + 32 * UNIT * (one.size + other.size + facts.start) + errors
    return difference / max(affine[1] * float(np.linalg.norm(moved)) + float(slack), 1e-300)
