"""Recovering with a method, and judging what came out beside the poisoned model and the retrained one."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcrab.attack import Trigger
from fedcrab.evaluate import Cost, MeteredFleet, accuracy, attack_success
from fedcrab.experiment import names
from fedcrab.experiment.setup import Setup, aggregate_of
from fedcrab.history import History
from fedcrab.recover import Step
from fedcrab.rollback import Plan, plan
from fedcrab.types import ClientId, Vector


@dataclass(frozen=True)
class Outcome:
    """A model, how it came about, and what that cost."""

    method: str
    model: Vector = field(repr=False)
    plan: Plan | None = None
    steps: tuple[Step, ...] = field(default=(), repr=False)
    cost: Cost = Cost(0, 0.0, 0, 0.0)
    seconds: float = 0.0  # in all, the server's own work included
    bytes: int = 0  # of the history it was recovered from


class Recovery:
    """A method at work: steps as they come, the outcome when they have."""

    def __init__(
        self,
        method: str,
        history: History,
        malicious: Collection[ClientId],
        setup: Setup,
        *,
        after: Step | None = None,
        **changes: Any,
    ) -> None:
        row = names.look_up("method", method, names.METHODS)
        self.method, self.plan = method, plan(history, malicious, **row.plan)
        self._fleet = MeteredFleet(setup.fleet, epochs=setup.config.local.epochs)
        self._seconds, self._done = 0.0, [after] if after else []
        settings = {**row.settings, **changes}
        self._steps = names.call(
            f"method {method!r}",
            row.function,
            self.plan,
            self._fleet,
            settings={
                **settings,
                "aggregate": aggregate_of(setup.config),
                "epochs": setup.config.local.epochs,
                "after": after,
            },
        )

    def __iter__(self) -> Iterator[Step]:
        """The steps; only the time that the method itself takes is counted."""
        while True:
            started = time.perf_counter()
            step = next(self._steps, None)
            self._seconds += time.perf_counter() - started
            if step is None:
                return
            self._done = [*self._done, step]
            yield step

    def outcome(self) -> Outcome:
        """What has come out so far."""
        history = self.plan.history
        model = self._done[-1].model if self._done else history.model(self.plan.rollback_round)
        stored = history.bytes()["total"] if self.method != "retrain" else 0
        cost = self._fleet.cost
        return Outcome(self.method, model, self.plan, tuple(self._done), cost, self._seconds, stored)


def recovered(
    method: str, history: History, malicious: Collection[ClientId], setup: Setup, **changes: Any
) -> Outcome:
    """Recover from beginning to end."""
    recovery = Recovery(method, history, malicious, setup, **changes)
    for _ in recovery:
        pass
    return recovery.outcome()


def poisoned(history: History) -> Outcome:
    """The model as the attack left it."""
    return Outcome("poisoned", history.final_model())


def judged(setup: Setup, outcome: Outcome, retrained: Vector | None = None) -> dict[str, Any]:
    """The measures of one outcome, as plain values."""
    x, y = setup.dataset.test_x, setup.dataset.test_y
    predict = setup.predictor.predict
    success = _success(setup, outcome.model)
    return {
        "method": outcome.method,
        "ta": accuracy(predict, outcome.model, x, y),
        "asr": success and success.without_target,
        "asr_with_target": success and success.with_target,
        "misr": None,
        "rollback_round": outcome.plan.rollback_round if outcome.plan else None,
        "rounds": len(outcome.steps),
        "client_rounds": outcome.cost.client_rounds,
        "sample_gradients": outcome.cost.sample_gradients,
        "seconds": outcome.seconds,
        "bytes": outcome.bytes,
        "distance": None if retrained is None else float(np.linalg.norm(outcome.model - retrained)),
    }


def _success(setup: Setup, model: Vector) -> Any:
    """ASR, where the attack has a trigger."""
    attack = setup.config.attack
    if attack is None or attack.name not in ("backdoor", "dba"):
        return None
    trigger = Trigger(**attack.settings.get("trigger", {}))
    target = attack.settings.get("target", 0)
    x, y = setup.dataset.test_x, setup.dataset.test_y
    return attack_success(setup.predictor.predict, model, x, y, target=target, trigger=trigger)
