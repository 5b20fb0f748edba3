"""The coupled bound: follow recovery and retraining round by round, with D ≥ ‖x_t - W_t‖.

x_t is the recovered model and W_t the retrained one. D starts at ψ of the rollback model. Then, for each
round t:

    kept        D ← min(D, ‖x_t - M_t‖ + ψ_t)
    replayed    D ← κD + ‖step - Σ p_c·û_c‖ + b_t + ρ·Σ |p_c - p'_c|·min(ψ_t, ‖x_t - M_t‖)
                or D + ‖step‖ + ‖W_{t+1} - W_t‖
    skipped     D ← κD + r_t(x_t),   or D + ‖W_{t+1} - W_t‖

p are the shares of the clients that replayed the round (0 for the others), and p' those of all its honest
clients. b_t is the length of Σ (p_c - p'_c)·u_c at M_t, from the ledger. C and ρ are those of
:meth:`Assumptions.local_affine`, and r_t(x) = ‖A_t(x) - x‖.

Proof. Retraining computes W ← A(W) with A = Σ p'_c·T_c. Recovery computes x ← S(x) + (step - Σ p_c·û_c) with
S = Σ p_c·T_c. Then ‖S(x) - A(W)‖ ≤ ‖S(x) - A(x)‖ + κD, and S(x) - A(x) = Σ (p_c - p'_c)·T_c(x) =
Σ (p_c - p'_c)·(u_c(M_t) + C·(x - M_t) + E_c). Terms that do not depend on c cancel, because both shares sum
to 1, and ‖E_c‖ ≤ ρ‖x - M_t‖. The same argument at W instead of x gives ψ_t instead of ‖x - M_t‖. In a
skipped round x stays the same: ‖x - A(W)‖ ≤ ‖x - A(x)‖ + κD. With full batches, r_t(x) follows from the
answers of the next replayed round, which were computed at the same x; after the last one, from the residual
of the recovered model. The alternatives with ‖W_{t+1} - W_t‖ are the triangle inequality.

The lengths of a step are those that recovery measured. For steps without them,
‖step - Σ p_c·û_c‖ ≤ Σ p_c·|ℓ_c - ‖û_c‖|.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from fedcrab.certificate.path_length import shortest_legs
from fedcrab.certificate.poison import GEOMETRY, UNIT, Premises
from fedcrab.certificate.term import SOUND, Term, finite, unknown
from fedcrab.history.records import RoundRecord
from fedcrab.rollback.decision import Plan
from fedcrab.types import ClientId

FORMULA = (
    "recovery and retraining side by side: D ← κD + ‖step - Σ p_c·û_c‖ + what the missing clients make; "
    "in skipped rounds D ← κD + ‖Σ p_c·û_c‖; D ≤ ‖x_t - M_t‖ + ψ_t"
)
ASSUMES = (
    "recovery is crab with weighted means, its steps are as reported",
    "clients train in recovery as they did in the history: same epochs, batches and examples",
    "Ψ is a bound",
)
Table = Mapping[str, Any]
Residual = Callable[[int], float]  # r_t at the recovered model; infinite if unknown


def coupled_bound(
    premises: Premises, steps: Sequence[Table] | None, *, start: float, residual: Residual, end: float
) -> Term:
    """Return distance.coupled, the bound after the last round.

    ``start`` is the distance from the rollback model to the model that recovery started from, ``residual``
    returns r_t(M̃), and ``end`` is ‖M̃ - M_T‖ + ψ_T.
    """
    plan, facts, psi, given = premises.plan, premises.facts, premises.psi, premises.given
    expansion, affine = given.local_expansion(), given.local_affine()
    legs = shortest_legs(premises)
    if psi is None or expansion is None or affine is None or legs is None or steps is None:
        return unknown(FORMULA, *ASSUMES, "the steps of a recovery by crab")
    replayed = {step["round"]: step for step in steps if step["examples"]}
    gap, rounds = psi[plan.rollback_round] + start, len(facts.busy)
    for t in range(plan.rollback_round, rounds):
        step, together = replayed.get(t), inf
        if step is not None:
            gap = min(gap, _apart(step) + psi[t])
            ours, everybody = _ours(step), honest_examples(plan, t)
            lost = missing(plan.history.rounds[t], ours, everybody, affine[1] * min(psi[t], _apart(step)))
            together = expansion * gap + _strayed(step) + lost
        elif facts.busy[t]:
            still = residual(t) if given.full_batch else inf
            if later := next((replayed[s] for s in range(t + 1, rounds) if s in replayed), None):
                still = _standing_still(plan, later, t, affine[1]) if given.full_batch else inf
            together = expansion * gap + still
        gap = min(together, gap + legs[t] + (_travelled(step) if step else 0.0))
        gap += 16 * UNIT * (facts.reach[t] + psi[t] + gap + (_fresh(step) if step else 0.0))
    return finite(Term(min(gap, end), SOUND, FORMULA, ASSUMES))


def last_step_residual(premises: Premises, steps: Sequence[Table] | None) -> float:
    """Return a bound of r(M̃): κ·‖last step‖ after an uncalibrated round of all honest clients, M̃ = A(x).

    ‖A(M̃) - M̃‖ = ‖A(A(x)) - A(x)‖ ≤ κ‖A(x) - x‖. Infinite if the last step was a different one, or if rounds
    differ.
    """
    facts, expansion = premises.facts, premises.given.local_expansion()
    if not steps or expansion is None or not premises.is_one_map or "measured" not in steps[-1]:
        return inf
    last = steps[-1]
    if last["renewed"] or not last["examples"] or _ours(last) != honest_examples(premises.plan, 0):
        return inf
    lengths = last["measured"]
    mistake = lengths["strayed"] + 8 * UNIT * (facts.reach[-1] + lengths["apart"] + _fresh(last))
    return float(expansion * lengths["mean"] + (1 + expansion) * mistake)


def honest_examples(plan: Plan, t: int) -> dict[ClientId, float]:
    """Return the number of examples of each honest client of a round."""
    entry = plan.history.rounds[t]
    rows = zip(entry.clients, entry.examples.tolist(), strict=True)
    return {client: n for client, n in rows if not plan.is_malicious(client, t)}


def missing(
    entry: RoundRecord, ours: Mapping[ClientId, float], everybody: Mapping[ClientId, float], far: float
) -> float:
    """Return b_t + ρ·Σ |p_c - p'_c|·‖x - M‖, the effect of the clients that differ; ``far`` is ρ‖x - M‖.

    ``ours`` and ``everybody`` have the examples of each client. Infinite if a client was not in the round.
    """
    if ours == everybody:
        return 0.0
    if not everybody or not {*ours, *everybody} <= {*entry.clients}:
        return inf
    some, whole = sum(ours.values()), sum(everybody.values())
    change = {c: ours.get(c, 0.0) / some - everybody.get(c, 0.0) / whole for c in {**everybody, **ours}}
    places, parts = [entry.clients.index(c) for c in change], np.array(list(change.values()))
    if entry.coordinates.sketched:
        there = float(np.abs(parts) @ entry.norms[places])
    else:
        there = float(np.linalg.norm(entry.coordinates.combine(places, parts)))
    return there * (1 + GEOMETRY) + far * float(np.abs(parts).sum())


def _standing_still(plan: Plan, later: Table, t: int, rho: float) -> float:
    """Return a bound of r_t(x) from a later round's answers at the same x, with the ledger for the others."""
    if "measured" not in later:
        return inf
    entry = plan.history.rounds[later["round"]]
    lost = missing(entry, _ours(later), honest_examples(plan, t), rho * _apart(later))
    return float(later["measured"]["mean"]) + lost


def _ours(step: Table) -> dict[ClientId, float]:
    return dict(zip(step["clients"], step["examples"], strict=True))


def _apart(step: Table) -> float:
    return float(step["measured"]["apart"]) if "measured" in step else inf


def _fresh(step: Table) -> float:
    """Return Σ p_c·‖û_c‖."""
    return float(np.average(step.get("renewed") or step["lengths"], weights=step["examples"]))


def _travelled(step: Table) -> float:
    """Return a bound of ‖step‖."""
    by_lengths = float(np.average(step["lengths"], weights=step["examples"]))
    return min(by_lengths, step["measured"]["mean"] + _strayed(step)) if "measured" in step else by_lengths


def _strayed(step: Table) -> float:
    """Return a bound of ‖step - Σ p_c·û_c‖."""
    return float(step["measured"]["strayed"]) if "measured" in step else _calibrated(step)


def _calibrated(step: Table) -> float:
    """Return Σ p_c·|ℓ_c - ‖û_c‖|."""
    fresh = np.array(step.get("renewed") or step["lengths"])
    return float(np.average(np.abs(step["lengths"] - fresh), weights=step["examples"]))


OF_LENGTHS = (
    "recovery and retraining side by side: D ← κD + Σ p_c·|ℓ_c - ‖û_c‖| + what the missing clients make"
)


def coupled_by_lengths(premises: Premises, steps: Sequence[Table] | None, *, start: float) -> Term:
    """Return the bound of certificates of format 1: from lengths only, with λ·ψ_t instead of ρ‖x_t - M_t‖.

    replayed    D ← κD + Σ p_c·|ℓ_c - ‖û_c‖| + b_t + λ·Σ |p_c - p'_c|·ψ_t
    or          D ← D + Σ p_c·ℓ_c + ‖W_{t+1} - W_t‖
    """
    plan, facts, psi, given = premises.plan, premises.facts, premises.psi, premises.given
    expansion, drift, legs = given.local_expansion(), given.local_drift(), shortest_legs(premises)
    if psi is None or expansion is None or drift is None or legs is None or steps is None:
        return unknown(OF_LENGTHS, *ASSUMES, "the steps of a recovery by crab")
    replayed = {step["round"]: step for step in steps if step["examples"]}
    gap = psi[plan.rollback_round] + start
    for t in range(plan.rollback_round, len(facts.busy)):
        step, together, own = replayed.get(t), inf, 0.0
        if step is not None:
            own = float(np.average(step["lengths"], weights=step["examples"]))
            together = expansion * gap + _calibrated(step) + _left_out(plan, step, drift * psi[t])
        gap = min(together, gap + legs[t] + own)
        gap += 16 * UNIT * (facts.reach[t] + psi[t] + gap)
    return finite(Term(gap, SOUND, OF_LENGTHS, ASSUMES))


def _left_out(plan: Plan, step: Table, far: float) -> float:
    """Return the effect of the honest clients that this step leaves out; infinite if it has any other."""
    t, ours = step["round"], _ours(step)
    entry, honest = plan.history.rounds[t], honest_examples(plan, t)
    if ours != honest and (entry.coordinates.sketched or not ours.keys() <= honest.keys()):
        return inf
    return missing(entry, ours, honest, far)
