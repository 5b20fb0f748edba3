"""Train from scratch: the initial model, the honest clients, every round again. What recovery is measured by.

    M̃ ← M_0;  for each round t:  M̃ ← M̃ + Σ p_c · û^c

over the honest participants c of round t, û^c their updates from M̃. A round without one is skipped.
``retrain_few`` asks only some of them, drawn again for each round: what somebody without a history would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fedcrab.aggregate.mean import Aggregate, fedavg, with_buffers
from fedcrab.recover.step import Step, check_answers, check_count, check_epochs, renew
from fedcrab.rollback.decision import Plan
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId, Fleet, Layout, Vector

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
    recovery that was interrupted; the recovery resumes from there.
    """
    whom = {entry.index: plan.askable(entry.index) for entry in plan.history.rounds}
    return train_rounds(plan, fleet, whom, plan.history.initial_model, aggregate, epochs, after)


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
    check_count("per_round", per_round)
    whom = {e.index: drawn(plan, e.index, per_round, e.index) for e in plan.history.rounds}
    return train_rounds(plan, fleet, whom, plan.history.initial_model, aggregate, epochs, after)


def drawn(plan: Plan, round: int, count: int | None, draw: int) -> tuple[ClientId, ...]:
    """So many of those who may be asked of a round, by a seed that clients do not know; None is all."""
    clients = plan.askable(round)
    if count is None or count >= len(clients):
        return clients
    order = rng_for(plan.history.charter.seed, "per round", draw).permutation(len(clients))
    return tuple(sorted(clients[place] for place in order[:count]))


def train_rounds(
    plan: Plan,
    fleet: Fleet,
    whom: Mapping[int, Sequence[ClientId]],
    start: Callable[[], Vector],
    aggregate: Aggregate | None,
    epochs: int | None,
    after: Step | None,
) -> Iterator[Step]:
    """Rounds of plain training with these clients, from the model that ``start`` gives or ``after`` a step.

    Raises ConfigError before anybody is asked if the rule needs more answers than some round can have.
    """
    check_epochs(epochs)
    rule = aggregate or fedavg()
    check_answers(rule, whom)
    return _steps(plan.history.charter.layout, fleet, whom, start, rule, epochs, after)


def _steps(
    layout: Layout,
    fleet: Fleet,
    whom: Mapping[int, Sequence[ClientId]],
    start: Callable[[], Vector],
    aggregate: Aggregate,
    epochs: int | None,
    after: Step | None,
) -> Iterator[Step]:
    rule, model = with_buffers(aggregate, layout), after.model if after else start()
    for t, clients in whom.items():
        if after and t <= after.round:
            continue
        step = renew(fleet, model, clients, round=t, epochs=epochs).applied(model, rule, layout, t)
        yield step
        model = step.model
