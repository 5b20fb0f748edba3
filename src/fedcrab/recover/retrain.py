"""Retrain: the initial model, the honest clients, every round again. Other methods are compared with it.

    M̃ ← M_0;  for each round t:  M̃ ← M̃ + Σ p_c · û^c

over the honest participants c of round t, û^c their updates from M̃. A round without any is skipped.
``retrain_few`` asks only some of them, drawn again in each round, as a server without a history would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fedcrab.aggregate.mean import Aggregate, fedavg, with_buffers
from fedcrab.recover.step import Step, check_answers, check_count, check_epochs, renew
from fedcrab.rollback.decision import Plan
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId, Fleet, Layout, Vector

PER_ROUND = 5  # honest clients asked per round by retrain_few


def retrain(
    plan: Plan,
    fleet: Fleet,
    *,
    aggregate: Aggregate | None = None,
    epochs: int | None = None,
    after: Step | None = None,
) -> Iterator[Step]:
    """Train again without the malicious clients. Only their names are taken from the plan.

    ``aggregate`` is the aggregation rule (None: the weighted mean). ``epochs`` is the number of local epochs
    (None: the fleet's own). ``after`` is the last step of an interrupted recovery, which continues from
    there.
    """
    clients_by_round = {entry.index: plan.askable(entry.index) for entry in plan.history.rounds}
    return train_rounds(plan, fleet, clients_by_round, plan.history.initial_model, aggregate, epochs, after)


def retrain_few(
    plan: Plan,
    fleet: Fleet,
    *,
    aggregate: Aggregate | None = None,
    epochs: int | None = None,
    after: Step | None = None,
    per_round: int = PER_ROUND,
) -> Iterator[Step]:
    """Train again with ``per_round`` honest participants per round, drawn with the history's seed.

    Everything else is as for ``retrain``.
    """
    check_count("per_round", per_round)
    clients_by_round = {e.index: drawn(plan, e.index, per_round, e.index) for e in plan.history.rounds}
    return train_rounds(plan, fleet, clients_by_round, plan.history.initial_model, aggregate, epochs, after)


def drawn(plan: Plan, round: int, count: int | None, draw: int) -> tuple[ClientId, ...]:
    """Return ``count`` participants that may be asked, drawn with a seed unknown to clients; None: all."""
    clients = plan.askable(round)
    if count is None or count >= len(clients):
        return clients
    order = rng_for(plan.history.charter.seed, "per round", draw).permutation(len(clients))
    return tuple(sorted(clients[place] for place in order[:count]))


def train_rounds(
    plan: Plan,
    fleet: Fleet,
    clients_by_round: Mapping[int, Sequence[ClientId]],
    start: Callable[[], Vector],
    aggregate: Aggregate | None,
    epochs: int | None,
    after: Step | None,
) -> Iterator[Step]:
    """Train rounds with these clients, from the model that ``start`` returns, or ``after`` a step.

    Raises ``ConfigError`` before any client is asked if the rule needs more answers than a round can have.
    """
    check_epochs(epochs)
    rule = aggregate or fedavg()
    check_answers(rule, clients_by_round)
    return _steps(plan.history.charter.layout, fleet, clients_by_round, start, rule, epochs, after)


def _steps(
    layout: Layout,
    fleet: Fleet,
    clients_by_round: Mapping[int, Sequence[ClientId]],
    start: Callable[[], Vector],
    aggregate: Aggregate,
    epochs: int | None,
    after: Step | None,
) -> Iterator[Step]:
    rule, model = with_buffers(aggregate, layout), after.model if after else start()
    for t, clients in clients_by_round.items():
        if after and t <= after.round:
            continue
        step = renew(fleet, model, clients, round=t, epochs=epochs).applied(model, rule, layout, t)
        yield step
        model = step.model
