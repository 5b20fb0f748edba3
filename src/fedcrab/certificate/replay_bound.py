"""The bound of a corrected replay: how far its model can be from the retraining.

A replay asks some clients of a round and uses the stored updates q_c of the others, with a correction. Let
v = x_t - M_t, p the shares of all honest clients of the round, and P the share of those not asked:

    D ← κD + ‖step - Σ_asked p_c·û_c - Σ_others p_c·(q_c + (C-1)·v)‖ + P·ρ‖v‖ + Σ_others p_c·ε_c
    D ← min(D, ‖x_{t+1} - M_{t+1}‖ + ψ_{t+1}, ‖x_{t+1} - m‖ + R)

Proof. ‖x + Σ p_c·u_c(x) - A(W)‖ ≤ κD, because x + Σ p_c·u_c(x) = A(x). For clients that were asked,
u_c(x) = û_c. For the others, u_c(x) = T_c(x) - x = u_c(M_t) + (C-1)·v + E_c with ‖E_c‖ ≤ ρ‖v‖
(:meth:`Assumptions.local_affine`), and ‖q_c - u_c(M_t)‖ ≤ ε_c. So A(x) is known up to P·ρ‖v‖ + Σ p_c·ε_c, and
the first norm is the distance of the step from it. The kind of correction (mean, median, L-BFGS) does not
matter. If M_t was rebuilt with an error e, ‖v‖ grows by e, and P·|1-C|·e is added.

C is declared after the recovery. Therefore a step does not record that norm, but three numbers that give it:
with a = step - Σ_asked p_c·û_c - Σ_others p_c·q_c,

    ‖a - P(C-1)v‖² = ‖a‖² - 2P(C-1)·⟨a, v⟩ + P²(C-1)²·‖v‖²

The standard error of the corrections is not a bound: it was exceeded in half of the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

from fedcrab.certificate.poison import UNIT, Premises
from fedcrab.certificate.term import SOUND, Term, finite, unknown
from fedcrab.recover.replay_record import ReplayRecord

CANCELLED = 2.0**-25  # of the lengths: rounding error of the square root of a difference of squares


def strayed(record: ReplayRecord, centre: float) -> float:
    """Return a bound of ‖a - P(C-1)v‖."""
    factor = record.others * (centre - 1)
    square = record.error**2 - 2 * factor * record.inner + (factor * record.apart) ** 2
    return sqrt(max(square, 0.0)) + CANCELLED * (record.error + abs(factor) * record.apart)


def replay_bound(
    premises: Premises,
    records: Sequence[ReplayRecord],
    *,
    start: float = 0.0,
    enclosed: Sequence[float] | None = None,
) -> float | None:
    """Return D after the last round; None if κ or ψ is unknown, or a round has no record.

    ``start`` is the distance from the rollback model to the model that recovery started from. ``enclosed``
    has ‖x_t - m‖ + R for each round t, from :func:`fedcrab.certificate.enclosure.enclosed`. Only rounds
    with an honest client need a record.
    """
    facts, psi, first = premises.facts, premises.psi, premises.plan.rollback_round
    expansion, affine = premises.given.local_expansion(), premises.given.local_affine()
    if psi is None or expansion is None or affine is None:
        return None
    replayed, gap = {record.round: record for record in records}, psi[first] + start
    for t in range(first, len(facts.busy)):
        record = replayed.get(t)
        if enclosed is not None:
            gap = min(gap, enclosed[t])
        if not facts.busy[t]:
            continue
        if record is None:
            return None
        apart = record.apart + record.model_error
        gap = min(gap, apart + psi[t])
        unknown = affine[1] * apart + abs(1 - affine[0]) * record.model_error
        gap = expansion * gap + strayed(record, affine[0]) + record.others * unknown + record.stored
        gap += 16 * UNIT * (facts.reach[t] + psi[t] + gap + record.apart + record.travelled)
    return gap


FORMULA = (
    "a replay and the retraining side by side: D ← κD + ‖step - what answers, stored updates and C say‖ + "
    "P·ρ‖x_t - M_t‖ + Σ p_c·ε_c; D ≤ ‖x_t - M_t‖ + ψ_t"
)
ASSUMES = (
    "recovery is a replay, its steps are as reported",
    "clients train in recovery as they did in the history: same epochs, batches and examples",
    "Ψ is a bound",
)


def replayed_term(premises: Premises, records: Sequence[ReplayRecord], *, start: float) -> Term:
    """Return distance.replayed, the bound of a replay from the records of its steps."""
    bound = replay_bound(premises, records, start=start) if records else None
    if bound is None:
        return unknown(FORMULA, *ASSUMES, "κ", "the records of every step of a replay")
    return finite(Term(bound, SOUND, FORMULA, ASSUMES))


def last_replayed_residual(premises: Premises, records: Sequence[ReplayRecord]) -> float:
    """Return a bound of r(M̃) if the last step asked every honest client, so that M̃ = A(x) + a.

    ‖A(M̃) - M̃‖ ≤ κ‖a‖ + κ‖A(x) - x‖ + ‖a‖, and ‖A(x) - x‖ ≤ ‖step‖ + ‖a‖. Infinite if the last step did not
    ask all of them, or if rounds differ.
    """
    facts, expansion = premises.facts, premises.given.local_expansion()
    if not records or expansion is None or not premises.is_one_map:
        return inf
    last = records[-1]
    if last.round != len(facts.busy) - 1 or last.others > 0:
        return inf
    mistake = last.error + 8 * UNIT * (facts.reach[-1] + last.apart + last.travelled)
    return float(expansion * (last.step + mistake) + (1 + expansion) * mistake)
