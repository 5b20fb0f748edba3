"""Recover with simulated clients, and measure the result beside the poisoned and the retrained model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedcrab.attack import Trigger
from fedcrab.errors import ConfigError
from fedcrab.evaluate import AttackSuccess, accuracy, attack_success
from fedcrab.experiment import names
from fedcrab.experiment.known_constants import known_assumptions, noised_start
from fedcrab.experiment.setup import Setup, aggregate_of
from fedcrab.history import History
from fedcrab.recover import Step
from fedcrab.recover.cost import Cost, MeteredFleet
from fedcrab.recover.folder import RecoveryFolder
from fedcrab.recover.replay import predicted_error
from fedcrab.recover.run import MethodRun
from fedcrab.recover.step import ReplayState
from fedcrab.rollback.decision import Plan, plan
from fedcrab.types import ClientId, Fleet, Vector

PLANNED = ("beta", "evidence", "rule", "unfound", "since")
PASSED = ("aggregate", "epochs", "after", "probe")  # parameters of a method that are not its settings


@dataclass(frozen=True)
class Outcome:
    """A recovered model, its steps and its cost."""

    method: str
    model: Vector = field(repr=False)
    plan: Plan | None = None
    steps: tuple[dict[str, Any], ...] = field(default=(), repr=False)  # each as Step.to_table gives it
    cost: Cost = Cost(0, 0.0, 0, 0.0)
    seconds: float = 0.0  # total, including the server's own work
    bytes: int = 0  # of the history that it was recovered from
    anchor: int = 0  # clients asked once more at the recovered model, for the certificate


class RecoveryRun:
    """One recovery with simulated clients: iterate over its steps, then ask for the outcome."""

    def __init__(
        self,
        method: str,
        history: History,
        malicious: Collection[ClientId],
        setup: Setup,
        *,
        saved: Path | None = None,
        noise: Mapping[str, float] | None = None,
        anchor: bool = False,
        plans: Plans | None = None,
        batches: str = "fresh",
        **changes: Any,
    ) -> None:
        """Prepare a recovery.

        ``saved`` is a directory for the steps, from which a killed recovery resumes. ``noise`` holds epsilon
        and delta of noise on the rollback model; it needs ``saved``, which stores the noised model.
        ``anchor`` keeps every answer for the certificate and asks every honest client once more at the
        recovered model; it needs ``saved`` too. ``plans`` are the plans that other methods have made.

        ``batches`` is ``fresh``, as real clients would draw them, or ``history``, which the convex bounds of
        a certificate need if batches are sampled. A retraining draws its own fresh batches.

        ``changes`` are settings of the method, and of the plan: beta, evidence, rule, unfound, since.
        """
        row = names.look_up("method", method, names.METHODS)
        planned = {name: changes.pop(name) for name in PLANNED if name in changes}
        decided = (plans or Plans(history, malicious)).decided({**row.plan, **planned})
        names.check_settings(f"method {method!r}", row.function, {**row.settings, **changes}, passed=PASSED)
        if row.keeps_answers(changes):
            changes = {**_constants(setup, decided, batches), **changes}
        clients, epochs = _clients(setup, method, batches), setup.config.local.epochs
        self._fleet = MeteredFleet(clients, epochs=epochs)
        self._run = MethodRun(
            method,
            decided,
            self._fleet,
            settings=changes,
            aggregate=aggregate_of(setup.config),
            epochs=epochs,
            saved=saved,
            anchor=anchor,
            probe=setup.probe,
        )
        self.method, self.plan = method, decided
        if saved is None:
            return
        request: dict[str, Any] = {name: getattr(decided, name) for name in planned}
        request |= {"batches": batches} if batches != row.batches else {}
        start = None
        if noise is not None:
            if not row.begins_at_rollback(changes):
                raise ConfigError(
                    f"noise is added to the rollback model, but {method} does not start there; "
                    "use crab-hardened, which does"
                )
            start = noised_start(saved, decided, setup, noise)
            request |= {"noise": dict(noise), "start": RecoveryFolder(saved).start_sha256}
        self._run.keep(request, start)

    @property
    def done(self) -> int:
        """The number of steps so far, including those of earlier runs."""
        return self._run.done

    @property
    def length(self) -> int:
        """The expected number of steps."""
        return self._run.length

    @property
    def start(self) -> Vector:
        """The model that the first step starts from."""
        return self._run.start

    def __iter__(self) -> Iterator[Step]:
        """Yield the steps."""
        return iter(self._run)

    def outcome(self) -> Outcome:
        """Return the outcome so far."""
        run = self._run
        stored = self.plan.history.bytes()["total"] if run.traits.needs_history else 0
        steps = tuple(run.tables)
        return Outcome(
            self.method, run.model, self.plan, steps, self._fleet.cost, run.seconds, stored, run.anchored
        )


def _clients(setup: Setup, method: str, batches: str) -> Fleet:
    """Return the simulated clients, with fresh batches or with those of the history."""
    if batches not in names.BATCHES:
        raise ConfigError(f"batches must be {' or '.join(names.BATCHES)}, got {batches!r}")
    if batches == "history":
        return setup.fleet
    return setup.fleet_again(2 if method == names.REFERENCE else 1)


def _constants(setup: Setup, plan: Plan, batches: str) -> dict[str, Any]:
    """C, ρ and whether batches are full; known for softmax regression only."""
    known = known_assumptions(setup, plan)
    affine = known.local_affine()
    if affine is None:
        raise ConfigError(
            f"proof needs a convex loss; softmax has one, {setup.config.model!r} does not; leave proof out"
        )
    if not known.full_batch and batches != "history":
        raise ConfigError(
            "proof needs answers with the history's batches, because they are sampled: --set batches=history"
        )
    return {"centre": affine[0], "spread": affine[1], "full_batch": known.full_batch}


class Plans:
    """The plans over one history; each is made once, for all methods that need it."""

    def __init__(self, history: History, malicious: Collection[ClientId]) -> None:
        self._history, self._malicious = history, malicious
        self._taken: list[tuple[Mapping[str, Any], Plan]] = []

    def decided(self, settings: Mapping[str, Any]) -> Plan:
        """Return the plan with these settings."""
        for known, taken in self._taken:
            if known == settings:
                return taken
        found = plan(self._history, self._malicious, **settings)
        self._taken.append((dict(settings), found))
        return found


def recover_to_end(
    method: str, history: History, malicious: Collection[ClientId], setup: Setup, **changes: Any
) -> Outcome:
    """Run a recovery to its end and return the outcome; arguments as for :class:`RecoveryRun`."""
    recovery = RecoveryRun(method, history, malicious, setup, **changes)
    for _ in recovery:
        pass
    return recovery.outcome()


def poisoned(history: History) -> Outcome:
    """Return the poisoned model as an outcome."""
    return Outcome("poisoned", history.final_model())


def measure_outcome(setup: Setup, outcome: Outcome, retrained: Vector | None = None) -> dict[str, Any]:
    """Return the measures of an outcome as plain values."""
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
        "contact_rounds": sum(bool(step["asked"]) for step in outcome.steps) + bool(outcome.anchor),
        "client_rounds": sum(len(step["asked"]) for step in outcome.steps) + outcome.anchor,
        "sample_gradients": outcome.cost.sample_gradients,
        "seconds": outcome.seconds,
        "bytes": outcome.bytes,
        "predicted": _predicted(outcome),
        "distance": None if retrained is None else float(np.linalg.norm(outcome.model - retrained)),
    }


def _predicted(outcome: Outcome) -> str | None:
    """Return the predicted error of a replay in one sentence; None for other methods."""
    state = outcome.steps[-1].get("replay") if outcome.steps else None
    if state is None or outcome.plan is None:
        return None
    history = outcome.plan.history
    start = history.model(outcome.plan.rollback_round)
    return predicted_error(ReplayState(**state), start, outcome.model, history.charter.layout)


def attack_success_of(setup: Setup, model: Vector, most: int | None = None) -> AttackSuccess | None:
    """Return ASR on the first ``most`` test examples, or on all; None if the attack has no trigger."""
    attack = setup.config.attack
    if attack is None or "trigger" not in names.setting_names(
        names.look_up("attack", attack.name, names.ATTACKS)
    ):
        return None
    trigger = Trigger(**attack.settings.get("trigger", {}))
    target = attack.settings.get("target", 0)
    x, y = setup.dataset.test_x[:most], setup.dataset.test_y[:most]
    return attack_success(setup.predictor.predict, model, x, y, target=target, trigger=trigger)
