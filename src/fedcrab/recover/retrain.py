"""Train from scratch: the initial model, the honest clients, every round again. What recovery is measured by.

    M̃ ← M_0;  for each round t:  M̃ ← M̃ + Σ p_c · û^c

over the honest participants c of round t, û^c their updates from M̃. A round without one is skipped.
``retrain_few`` asks only some of them, drawn anew each round: what somebody would do who has no history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fedcrab.aggregate.mean import Aggregate, fedavg, with_buffers
from fedcrab.recover.step import Step, check_answers, check_count, check_epochs, renew
from fedcrab.rollback.decision import Plan
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId, Fleet

PER_ROUND = 5  # honest clients asked per round, where few are


def retrain(
    plan: Plan,
    fleet: Fleet,
    *,
    aggregate: Aggregate | None = None,
    epochs: int | None = None,
    after: Step | None = None,
) -> Iterator[Step]:
    """Train again without the malicious clients; only who they are is taken from the plan.

    ``epochs`` are the clients' local ones (None: as the fleet has them). ``after`` is the last step of a
    recovery that was interrupted; its like goes on from there.
    """
    check_epochs(epochs)
    whom = {entry.index: plan.askable(entry.index) for entry in plan.history.rounds}
    return _train(plan, fleet, aggregate or fedavg(), epochs, after, whom)


def retrain_few(
    plan: Plan,
    fleet: Fleet,
    *,
    aggregate: Aggregate | None = None,
    epochs: int | None = None,
    after: Step | None = None,
    per_round: int = PER_ROUND,
) -> Iterator[Step]:
    """Train again with ``per_round`` honest participants of each round, drawn by the history's seed."""
    check_epochs(epochs)
    check_count("per_round", per_round)
    whom = {e.index: drawn(plan, e.index, per_round, e.index) for e in plan.history.rounds}
    return _train(plan, fleet, aggregate or fedavg(), epochs, after, whom)


def drawn(plan: Plan, round: int, count: int | None, draw: int) -> tuple[ClientId, ...]:
    """So many of those who may be asked of a round, by a seed that clients do not know; None is all."""
    clients = plan.askable(round)
    if count is None or count >= len(clients):
        return clients
    order = rng_for(plan.history.charter.seed, "per round", draw).permutation(len(clients))
    return tuple(sorted(clients[place] for place in order[:count]))


def _train(
    plan: Plan,
    fleet: Fleet,
    aggregate: Aggregate,
    epochs: int | None,
    after: Step | None,
    whom: Mapping[int, Sequence[ClientId]],
) -> Iterator[Step]:
    check_answers(aggregate, whom)
    return _steps(plan, fleet, aggregate, epochs, after, whom)


def _steps(
    plan: Plan,
    fleet: Fleet,
    aggregate: Aggregate,
    epochs: int | None,
    after: Step | None,
    whom: Mapping[int, Sequence[ClientId]],
) -> Iterator[Step]:
    history, layout = plan.history, plan.history.charter.layout
    rule = with_buffers(aggregate, layout)
    model = after.model if after else history.initial_model()
    for t in range(after.round + 1 if after else 0, len(history.rounds)):
        renewed = renew(fleet, model, whom[t], round=t, epochs=epochs)
        step = renewed.applied(model, rule, layout, t)
        yield step
        model = step.model
