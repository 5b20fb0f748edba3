"""Finetune: train some more rounds with the honest clients, from the poisoned model. The cheapest method.

    M̃ ← M_T;  for r = 0 … rounds - 1:  M̃ ← M̃ + Σ p_c · û^c

The sum is over the honest participants c of the last rounds of the training, or ``per_round`` of them, drawn.
It needs only the last model, and it does not remove a backdoor: honest examples do not contradict one. A
useful method must do better than this.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedcrab.aggregate.mean import Aggregate
from fedcrab.recover.retrain import drawn, train_rounds
from fedcrab.recover.step import Step, check_count
from fedcrab.rollback.decision import Plan
from fedcrab.types import Fleet

ROUNDS = 10


def finetune(
    plan: Plan,
    fleet: Fleet,
    *,
    aggregate: Aggregate | None = None,
    epochs: int | None = None,
    after: Step | None = None,
    rounds: int = ROUNDS,
    per_round: int | None = None,
) -> Iterator[Step]:
    """Continue training from the last model without the malicious clients, the only input from the plan.

    ``rounds`` more rounds are trained, each with ``per_round`` honest clients (None: all), aggregated by
    ``aggregate`` (None: the weighted mean). Its steps are the rounds T, T + 1, …, so that clients that draw
    by round draw new batches. ``epochs`` is the number of local epochs (None: the fleet's own). ``after`` is
    the last step of an interrupted recovery, which continues from there.
    """
    check_count("rounds", rounds)
    if per_round is not None:
        check_count("per_round", per_round)
    last = len(plan.history.rounds)
    clients_by_round = {
        last + r: drawn(plan, (last - rounds + r) % last, per_round, last + r) for r in range(rounds)
    }
    return train_rounds(plan, fleet, clients_by_round, plan.history.final_model, aggregate, epochs, after)
