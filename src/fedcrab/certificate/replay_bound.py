"""A sound bound for the corrected replay: how far x_T can be from the retraining.

A replay asks some clients of a round and takes the stored updates q_c of the others, corrected somehow. With
v = x_t - M_t, p the shares of all honest clients of the round and P the share of those not asked:

    D ← κD + ‖step - Σ_asked p_c·û_c - Σ_others p_c·(q_c + (C-1)·v)‖ + P·ρ‖v‖ + Σ_others p_c·ε_c
    D ← min(D, ‖x_{t+1} - M_{t+1}‖ + ψ_{t+1}, ‖x_{t+1} - m‖ + R)

Proof. ‖x + Σ p_c·u_c(x) - A(W)‖ ≤ κD, as x + Σ p_c·u_c(x) = A(x). Of those asked u_c(x) = û_c. Of the others
u_c(x) = T_c(x) - x = u_c(M_t) + (C-1)·v + E_c with ‖E_c‖ ≤ ρ‖v‖ (:meth:`Assumptions.local_affine`), and q_c
is within ε_c of u_c(M_t). So A(x) is known to P·ρ‖v‖ + Σ p_c·ε_c, and the first norm says how far the step
was from it. However the correction was made (mean, median, L-BFGS) makes no difference. An M_t that was
rebuilt with an error e makes ‖v‖ that much longer, and adds P·|1-C|·e.

C is declared after recovery, so a step does not record that norm but three numbers from which it follows:
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

CANCELLED = 2.0**-25  # of the lengths: what a square root of a difference of squares can lose


def strayed(record: ReplayRecord, centre: float) -> float:
    """‖a - P(C-1)v‖, at most."""
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
    """D after the last round, from the rollback round on; None where nothing bounds it.

    ``start`` is how far from the rollback model recovery began.
    ``enclosed`` gives ‖x_t - m‖ + R for each round t, of :func:`fedcrab.certificate.enclosure.enclosed`.
    Every round with an honest client needs a record.
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
    """distance.replayed: the bound of a replay from the records of its steps."""
    bound = replay_bound(premises, records, start=start) if records else None
    if bound is None:
        return unknown(FORMULA, *ASSUMES, "κ", "the records of every step of a replay")
    return finite(Term(bound, SOUND, FORMULA, ASSUMES))


def last_replayed_residual(premises: Premises, records: Sequence[ReplayRecord]) -> float:
    """r(M̃) where the last step asked everybody: M̃ = A(x) + a; infinite where it did not, or rounds differ.

    ‖A(M̃) - M̃‖ ≤ κ‖a‖ + κ‖A(x) - x‖ + ‖a‖, and ‖A(x) - x‖ ≤ ‖step‖ + ‖a‖.
    """
    facts, expansion = premises.facts, premises.given.local_expansion()
    if not records or expansion is None or not premises.is_one_map:
        return inf
    last = records[-1]
    if last.round != len(facts.busy) - 1 or last.others > 0:
        return inf
    mistake = last.error + 8 * UNIT * (facts.reach[-1] + last.apart + last.travelled)
    return float(expansion * (last.step + mistake) + (1 + expansion) * mistake)
