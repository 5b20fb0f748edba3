"""Recovering with a method, and judging what came out beside the poisoned model and the retrained one."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedcrab.attack import Trigger
from fedcrab.certify.folder import START
from fedcrab.errors import ConfigError
from fedcrab.evaluate import AttackSuccess, Cost, MeteredFleet, accuracy, attack_success
from fedcrab.experiment import names
from fedcrab.experiment.noise import noised_start
from fedcrab.experiment.setup import Setup, aggregate_of
from fedcrab.history import History
from fedcrab.history.disk import hash_regular
from fedcrab.recover import Step
from fedcrab.recover.progress import resumable, saved_model, saved_steps
from fedcrab.rollback import Plan, plan
from fedcrab.types import ClientId, Vector

PLANNED = ("beta", "evidence", "rule", "unfound")


@dataclass(frozen=True)
class Outcome:
    """A model, how it came about, and what that cost."""

    method: str
    model: Vector = field(repr=False)
    plan: Plan | None = None
    steps: tuple[dict[str, Any], ...] = field(default=(), repr=False)  # each as Step.to_table gives it
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
        saved: Path | None = None,
        noise: Mapping[str, float] | None = None,
        **changes: Any,
    ) -> None:
        """``saved`` is a directory in which each step is kept, and from which a killed recovery goes on.

        ``noise`` is epsilon and delta of noise on the rollback model that recovery begins at; it needs
        ``saved``, where the noised model is kept.

        ``changes`` are other values for the method's own settings, and for the plan's beta, evidence, rule,
        unfound.
        """
        row = names.look_up("method", method, names.METHODS)
        planned = {name: changes.pop(name) for name in PLANNED if name in changes}
        self.method, self.plan = method, plan(history, malicious, **{**row.plan, **planned})
        planned = {name: getattr(self.plan, name) for name in planned}
        self._fleet = MeteredFleet(setup.fleet, epochs=setup.config.local.epochs)
        self._saved, self._seconds = saved, 0.0
        self._last: Vector | None = None
        self._tables = saved_steps(saved) if saved else []
        settings = {**row.settings, **changes}
        fixed = {"aggregate": aggregate_of(setup.config), "epochs": setup.config.local.epochs}
        what = f"method {method!r}"
        self._steps: Iterator[Step] = names.call(
            what, row.function, self.plan, self._fleet, settings=settings, **fixed
        )  # refused here, before anything is written, where the history does not have what it needs
        self._start: Step | None = None
        if saved is not None:
            request = {"method": method, **planned, **settings}
            if noise is not None:
                self._start = self._noised(saved, setup, noise)
                request |= {"noise": dict(noise), "start": hash_regular(saved / START)}
            self._steps = resumable(
                saved,
                row.function,
                self.plan,
                self._fleet,
                request=request,
                start=self._start,
                **settings,
                **fixed,
            )

    def _noised(self, saved: Path, setup: Setup, noise: Mapping[str, float]) -> Step:
        if not self._rolls_back:
            raise ConfigError(
                f"noise is for the rollback model, where {self.method} does not begin; crab-hardened does"
            )
        return noised_start(saved, self.plan, setup, noise)

    @property
    def done(self) -> int:
        """How many steps there are by now, those of earlier runs included."""
        return len(self._tables)

    @property
    def length(self) -> int:
        """About how many there will be."""
        return len(self.plan.replay) if self._rolls_back else len(self.plan.history.rounds)

    @property
    def start(self) -> Vector:
        """The model that the first step starts from."""
        history = self.plan.history
        if self._start is not None:
            return self._start.model
        return history.model(self.plan.rollback_round) if self._rolls_back else history.initial_model()

    @property
    def _rolls_back(self) -> bool:
        return self.method.startswith("crab")

    def __iter__(self) -> Iterator[Step]:
        """The steps; only the time that the method itself takes is counted."""
        while True:
            started = time.perf_counter()
            step = next(self._steps, None)
            self._seconds += time.perf_counter() - started
            if step is None:
                return
            self._tables.append(step.to_table())
            self._last = step.model
            yield step

    def outcome(self) -> Outcome:
        """What has come out so far."""
        history = self.plan.history
        stored = history.bytes()["total"] if self.method != "retrain" else 0
        steps = tuple(self._tables)
        return Outcome(self.method, self._model(), self.plan, steps, self._fleet.cost, self._seconds, stored)

    def _model(self) -> Vector:
        if self._last is not None:
            return self._last
        if self._saved is not None and self._tables:
            return saved_model(self._saved, self.plan.history.charter.layout)
        return self.start if self._start is not None else self.plan.history.model(self.plan.rollback_round)


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
    success = attack_success_of(setup, outcome.model)
    return {
        "method": outcome.method,
        "ta": accuracy(predict, outcome.model, x, y),
        "asr": success.without_target if success else None,
        "asr_with_target": success.with_target if success else None,
        "misr": None,
        "rollback_round": outcome.plan.rollback_round if outcome.plan else None,
        "rounds": len(outcome.steps),
        "client_rounds": sum(len(step["asked"]) for step in outcome.steps),
        "sample_gradients": outcome.cost.sample_gradients,
        "seconds": outcome.seconds,
        "bytes": outcome.bytes,
        "distance": None if retrained is None else float(np.linalg.norm(outcome.model - retrained)),
    }


def attack_success_of(setup: Setup, model: Vector, most: int | None = None) -> AttackSuccess | None:
    """ASR, where the attack has a trigger; on the first ``most`` test examples, or on all."""
    attack = setup.config.attack
    if attack is None or attack.name not in ("backdoor", "dba"):
        return None
    trigger = Trigger(**attack.settings.get("trigger", {}))
    target = attack.settings.get("target", 0)
    x, y = setup.dataset.test_x[:most], setup.dataset.test_y[:most]
    return attack_success(setup.predictor.predict, model, x, y, target=target, trigger=trigger)
