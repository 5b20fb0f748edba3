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

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite, sqrt
from typing import Any

import numpy as np

from fedcrab.certificate.assumptions import Assumptions
from fedcrab.certificate.poison import UNIT, PoisonBounds
from fedcrab.errors import ConfigError
from fedcrab.types import ClientId, Vector
from fedcrab.vectors import stretches

CANCELLED = 2.0**-25  # of the lengths: what a square root of a difference of squares can lose


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """What one replayed round leaves for the certificate; lengths are over the trained numbers."""

    round: int
    error: float  # ‖a‖, a = step - Σ_asked p_c·û_c - Σ_others p_c·q_c
    inner: float  # ⟨a, v⟩
    apart: float  # ‖v‖ = ‖x_t - M_t‖
    others: float  # P, the share of those not asked
    stored: float  # Σ_others p_c·ε_c: how far stored updates are from those that were sent
    travelled: float  # Σ p_c·‖û_c or q_c‖, for what float32 loses
    model_error: float = 0.0  # how far the history's model, as it was rebuilt, is from M_t

    def __post_init__(self) -> None:
        numbers = [getattr(self, f.name) for f in fields(self)]
        if not all(isinstance(n, int | float) and isfinite(n) for n in numbers) or self.round < 0:
            raise ConfigError(f"a replayed round is recorded in finite numbers, got {numbers}")
        least = min(self.error, self.apart, self.others, self.stored, self.travelled, self.model_error)
        if least < 0 or self.others > 1 + 1e-9:
            raise ConfigError(f"lengths are 0 or more and shares at most 1, got {numbers}")

    @classmethod
    def of(
        cls,
        round: int,
        *,
        before: Vector,
        after: Vector,
        history: Vector,
        examples: Mapping[ClientId, float],
        asked: Mapping[ClientId, Vector],
        stored: Mapping[ClientId, Vector],
        errors: Mapping[ClientId, float] | None = None,
        model_error: float = 0.0,
        trained: Sequence[slice],
    ) -> ReplayRecord:
        """Measure a step from x_t to x_{t+1}: ``examples`` of all honest clients of the round.

        ``asked`` are the fresh answers at x_t, ``stored`` the q_c of the others, ``errors`` their ε_c,
        ``history`` is M_t, rebuilt to within ``model_error``.
        """
        whole, a_a, a_v, v_v = sum(examples.values()), 0.0, 0.0, 0.0
        shares = {client: n / whole for client, n in examples.items()}
        used = {client: asked.get(client, stored.get(client)) for client in examples}
        if missing := [client for client, vector in used.items() if vector is None]:
            raise ConfigError(f"client {missing[0]!r} has neither an answer nor a stored update")
        lengths = dict.fromkeys(used, 0.0)
        for part in stretches(trained, 1):
            start = before[part].astype(np.float64)
            v, a = start - history[part], after[part] - start
            for client, vector in used.items():
                row = np.asarray(vector)[part].astype(np.float64)
                a = a - shares[client] * row
                lengths[client] += float(row @ row)
            a_a, a_v, v_v = a_a + float(a @ a), a_v + float(a @ v), v_v + float(v @ v)
        others = [client for client in examples if client not in asked]
        lost = sum(shares[c] * (errors or {}).get(c, 0.0) for c in others)
        far = sum(shares[c] * sqrt(square) for c, square in lengths.items())
        share = sum(shares[c] for c in others)
        return cls(round, sqrt(a_a), a_v, sqrt(v_v), share, lost, far, model_error)

    def strayed(self, centre: float) -> float:
        """‖a - P(C-1)v‖, at most."""
        factor = self.others * (centre - 1)
        square = self.error**2 - 2 * factor * self.inner + (factor * self.apart) ** 2
        return sqrt(max(square, 0.0)) + CANCELLED * (self.error + abs(factor) * self.apart)

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def replay_bound(
    records: Sequence[ReplayRecord],
    facts: PoisonBounds,
    psi: Sequence[float],
    given: Assumptions,
    *,
    first: int,
    enclosed: Sequence[float] | None = None,
) -> float | None:
    """D after the last round, from the rollback round ``first`` on; None where nothing bounds it.

    ``enclosed`` gives ‖x_t - m‖ + R for each round t, of :func:`fedcrab.certificate.enclosure.enclosed`.
    Every round with an honest client needs a record.
    """
    expansion, affine = given.local_expansion(), given.local_affine()
    if expansion is None or affine is None:
        return None
    replayed, gap = {record.round: record for record in records}, psi[first]
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
        gap = expansion * gap + record.strayed(affine[0]) + record.others * unknown + record.stored
        gap += 16 * UNIT * (facts.reach[t] + psi[t] + gap + record.apart + record.travelled)
    return gap
