"""What each replayed round stores for the certificate: six lengths, measured while the vectors are in memory.

With v = x_t - M_t, p the shares of the round's honest clients, û_c the fresh answers of those asked and q_c
the stored updates of the others,

    a = step - Σ_asked p_c·û_c - Σ_others p_c·q_c

is how far the step was from what the answers and the stored updates give, however the correction was made.
:mod:`fedcrab.certificate.replay_bound` has the bound that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from typing import Any

import numpy as np

from fedcrab.errors import ConfigError
from fedcrab.recover.step import Step
from fedcrab.rollback.decision import Plan
from fedcrab.types import ClientId, Fleet, Updates, Vector
from fedcrab.vectors import norm, products, stretches, weighted_sum


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """What one replayed round stores for the certificate; lengths are over the trained numbers."""

    round: int
    error: float  # ‖a‖
    inner: float  # ⟨a, v⟩
    apart: float  # ‖v‖ = ‖x_t - M_t‖
    others: float  # P, the share of the clients not asked
    stored: float  # Σ_others p_c·ε_c: how far stored updates are from the sent ones
    travelled: float  # Σ p_c·‖û_c or q_c‖, to bound rounding in float32
    step: float  # ‖x_{t+1} - x_t‖
    model_error: float = 0.0  # how far the rebuilt model of the history is from M_t

    def __post_init__(self) -> None:
        numbers = [getattr(self, f.name) for f in fields(self)]
        if not all(_is_number(n) for n in numbers) or self.round < 0:
            raise ConfigError(f"the record of a replayed round must have finite numbers, got {numbers}")
        lengths = (self.error, self.apart, self.others, self.stored, self.travelled, self.step)
        if min(*lengths, self.model_error) < 0 or self.others > 1 + 1e-9:
            raise ConfigError(f"lengths must be 0 or more and shares at most 1, got {numbers}")

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
        """Measure a step from x_t to x_{t+1}; ``examples`` are those of all honest clients of the round.

        ``asked`` are the fresh answers at x_t, ``stored`` the q_c of the others, ``errors`` their ε_c,
        ``history`` is M_t, rebuilt to within ``model_error``.
        """
        whole = sum(examples.values())
        shares = {client: n / whole for client, n in examples.items()}
        used = {client: asked.get(client, stored.get(client)) for client in examples}
        if missing := [client for client, vector in used.items() if vector is None]:
            raise ConfigError(f"client {missing[0]!r} has neither an answer nor a stored update")
        rows, factors = [np.asarray(row) for row in used.values()], np.array([shares[c] for c in used])
        inner = np.zeros((3, 3))  # of a, v and the step
        for part in stretches(trained, 1):
            start = before[part].astype(np.float64)
            v, moved = start - history[part], after[part] - start
            a = moved - weighted_sum(factors, [row[part] for row in rows])
            inner += products([a, v, moved], [a, v, moved])
        error, apart, step = np.sqrt(np.diagonal(inner)).tolist()
        others = [client for client in examples if client not in asked]
        lost = sum(shares[c] * (errors or {}).get(c, 0.0) for c in others)
        far = sum(share * norm(row, trained) for share, row in zip(shares.values(), rows, strict=True))
        share = sum(shares[c] for c in others)
        return cls(round, error, float(inner[0, 1]), apart, share, lost, far, step, model_error)

    def to_table(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_table(cls, table: Any) -> ReplayRecord:
        """Return what :meth:`to_table` wrote; the values are not trusted."""
        names = {f.name for f in fields(cls)}
        if not isinstance(table, Mapping) or {*table} != names or not isinstance(table["round"], int):
            raise ConfigError("the record of a replayed round has unexpected fields")
        return cls(**table)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


class RememberingFleet:
    """A fleet around a fleet that remembers the answers until they are collected."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._answers = fleet, dict[ClientId, Vector]()

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """Return the answers of the inner fleet."""
        updates = self._fleet.train(model, clients, round=round, epochs=epochs)
        self._answers |= dict(zip(updates.clients, updates.vectors, strict=True))
        return updates

    def collected(self, clients: Sequence[ClientId]) -> dict[ClientId, Vector]:
        """Return the answers of these clients, and forget all answers."""
        found = {client: self._answers[client] for client in clients if client in self._answers}
        self._answers = {}
        return found


def recorded(
    plan: Plan, fleet: Fleet, steps: Callable[[Fleet], Iterator[Step]], after: Step | None
) -> Iterator[Step]:
    """Yield the steps of a replay, each with its record."""
    remembering = RememberingFleet(fleet)
    model = after.model if after else plan.history.model(plan.rollback_round)
    for step in steps(remembering):
        yield replace(step, record=_record(plan, remembering, model, step))
        model = step.model


def _record(plan: Plan, remembering: RememberingFleet, before: Vector, step: Step) -> dict[str, Any] | None:
    history, t = plan.history, step.round
    dropped = {rejection.client for rejection in step.dropped}
    asked = remembering.collected([client for client in step.asked if client not in dropped])
    entry, honest = history.rounds[t], plan.honest(t)
    if not honest:
        return None
    examples = dict(zip(entry.clients, entry.examples.tolist(), strict=True))
    updates = history.updates(t, honest)
    lost = dict(zip(entry.clients, history.update_errors(t).tolist(), strict=True))
    return ReplayRecord.of(
        t,
        before=before,
        after=step.model,
        history=history.model(t),
        examples={client: examples[client] for client in honest},
        asked=asked,
        stored=dict(zip(updates.clients, updates.vectors, strict=True)),
        errors=lost,
        model_error=history.model_error(t),
        trained=history.charter.layout.trained(),
    ).to_table()
