"""What a recovery costs. The cost is measured around the fleet, so methods do not count.

Also predicts what each method would cost: which clients it asks in which round, if all of them answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedcrab.aggregate.mean import fedavg
from fedcrab.errors import HistoryError
from fedcrab.history import History
from fedcrab.recover.crab import asked_in
from fedcrab.recover.finetune import ROUNDS
from fedcrab.recover.methods import METHODS, REFERENCE, Method
from fedcrab.recover.pacing import FEWEST
from fedcrab.recover.schedule import most_asked, settled_rounds, usual_contacts
from fedcrab.rollback.decision import Plan
from fedcrab.types import ClientId, Fleet, Updates, Vector


@dataclass(frozen=True, slots=True)
class Cost:
    """The work of the clients and the time it took."""

    client_rounds: int  # one per client that was asked to train once
    sample_gradients: float  # examples × epochs over all of these
    calls: int  # times the fleet was asked
    seconds: float  # spent in the fleet


class MeteredFleet:
    """A fleet around a fleet that counts the work."""

    def __init__(self, fleet: Fleet, *, epochs: int) -> None:
        self._fleet, self._epochs = fleet, epochs
        self.cost = Cost(0, 0.0, 0, 0.0)

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """Return the answers of the inner fleet."""
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


@dataclass(frozen=True, slots=True)
class PlannedCost:
    """What a method would ask of the honest clients."""

    from_round: int  # the round of the history that it starts at
    contact_rounds: int  # rounds in which any client is asked
    client_rounds: int
    share_of_retrain: float  # of the client-rounds of retraining
    remark: str = ""
    refused: str | None = None  # why the method cannot use this history

    def to_table(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def planned_costs(plan: Plan, paper: Plan) -> dict[str, PlannedCost]:
    """Return each method's cost under ``plan``; methods of the preset ``paper`` use ``paper``."""
    rows = reversed([*METHODS.items()])
    return {name: _planned_cost(name, paper if row.preset == "paper" else plan) for name, row in rows}


def _planned_cost(method: str, plan: Plan) -> PlannedCost:
    counts = [n for n in planned_asks(method, plan) if n]
    scratch, row = sum(planned_asks(REFERENCE, plan)), METHODS[method]
    begins = {"initial": 0, "rollback": plan.rollback_round, "final": len(plan.history.rounds)}
    return PlannedCost(
        begins[row.start],
        len(counts),
        sum(counts),
        sum(counts) / scratch if scratch else 0.0,
        row.remark,
        refused(plan.history, method),
    )


def planned_asks(method: str, plan: Plan) -> list[int]:
    """Return how many clients each round of a recovery asks; rounds without contact are left out if known."""
    row, rounds = METHODS[method], len(plan.history.rounds)
    honest = [len(plan.askable(t)) for t in range(rounds)]
    if row.by_plan:
        last = row.settings["settle"] if row.settings["everyone"] else 0
        return [len(clients) for _, clients in asked_in(plan, fedavg(), last)]
    if row.rolls_back and row.contacts is None:
        last = rounds - settled_rounds(rounds - plan.rollback_round)
        few = [most_asked(FEWEST, honest[t]) for t in usual_contacts(plan.rollback_round, rounds)]
        return [*few, *honest[max(last, plan.rollback_round + 1) :]]
    return [
        honest[t] if row.most is None else min(honest[t], row.most)
        for t in contact_rounds(row, plan.history, plan.rollback_round if row.rolls_back else 0)
    ]


def contact_rounds(row: Method, history: History, first: int = 0) -> list[int]:
    """Return the rounds from ``first`` on whose honest participants a method asks; all if unknown.

    A method that continues from the last model asks the participants of the last rounds.
    """
    rounds = len(history.rounds)
    if row.start == "final" and row.contacts is None:
        return [(rounds - ROUNDS + r) % rounds for r in range(ROUNDS)] if rounds else []
    return list(row.contacts(history, first) if row.contacts else range(rounds))


def refused(history: History, method: str) -> str | None:
    """Return why a method cannot recover from this history, or None."""
    check = METHODS[method].check
    if check is None:
        return None
    if not history.rounds:
        return "no round is recorded"
    try:
        check(history)
    except HistoryError as error:
        return str(error).removeprefix(f"{history.path}: ").partition(";")[0]
    return None
