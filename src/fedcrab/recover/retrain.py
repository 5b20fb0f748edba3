"""Train from scratch: the initial model, the honest clients, every round again. What recovery is measured by.

    M̃ ← M_0;  for each round t:  M̃ ← M̃ + Σ p_c · û^c

over the honest participants c of round t, û^c their updates from M̃. A round without one is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedcrab.aggregate.buffers import beside_buffers
from fedcrab.aggregate.fedavg import fedavg
from fedcrab.aggregate.rule import Aggregate
from fedcrab.recover.renewal import check_epochs, renew
from fedcrab.recover.step import Step
from fedcrab.rollback import Plan
from fedcrab.types import Fleet


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
    return _train(plan, fleet, aggregate or fedavg(), epochs, after)


def _train(
    plan: Plan, fleet: Fleet, aggregate: Aggregate, epochs: int | None, after: Step | None
) -> Iterator[Step]:
    history, layout = plan.history, plan.history.charter.layout
    rule = beside_buffers(aggregate, layout)
    model = after.model if after else history.initial_model()
    for entry in history.rounds[after.round + 1 if after else 0 :]:
        honest = [client for client in entry.clients if client not in plan.malicious]
        renewed = renew(fleet, model, honest, round=entry.index, epochs=epochs)
        step = renewed.applied(model, rule, layout, entry.index)
        yield step
        model = step.model
