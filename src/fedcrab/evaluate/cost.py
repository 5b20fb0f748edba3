"""What a recovery costs: metered around the fleet, so that no method counts itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from fedcrab.history import History, Selective
from fedcrab.types import ClientId, Fleet, Updates, Vector


@dataclass(frozen=True, slots=True)
class Cost:
    """The work of the clients and the time it took."""

    client_rounds: int  # a client asked to train once
    sample_gradients: float  # examples × epochs over all of these
    calls: int  # times the fleet was asked
    seconds: float  # spent in the fleet


class MeteredFleet:
    """A fleet around a fleet that counts what is asked of it."""

    def __init__(self, fleet: Fleet, *, epochs: int) -> None:
        self._fleet, self._epochs = fleet, epochs
        self.cost = Cost(0, 0.0, 0, 0.0)

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """What the fleet inside answers."""
        started = time.perf_counter()
        updates = self._fleet.train(model, clients, round=round, epochs=epochs)
        spent = time.perf_counter() - started
        examples = float(updates.weights.sum()) * (self._epochs if epochs is None else epochs)
        was = self.cost
        self.cost = Cost(
            was.client_rounds + len(clients),
            was.sample_gradients + examples,
            was.calls + 1,
            was.seconds + spent,
        )
        return updates


def peak_buffered(history: History) -> int:
    """The most bytes that undecided rounds took while recording: a model and a mean each."""
    longest = max((w.last - w.first + 1 for w in history.contents.windows), default=0)
    pending = longest if isinstance(history.charter.selection, Selective) else 1
    return pending * history.charter.layout.size * (4 + 8)
