"""Recovering with a method, and judging what came out beside the poisoned model and the retrained one."""

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
    anchor: int = 0  # clients asked once more at the model, for the certificate


class RecoveryRun:
    """A method at work with simulated clients: steps as they come, the outcome when they have."""

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
        """``saved`` is a directory in which each step is kept, and from which a killed recovery resumes.

        ``noise`` is epsilon and delta of noise on the rollback model that recovery begins at; it needs
        ``saved``, where the noised model is kept.

        ``anchor`` has every answer kept for the certificate, and every honest client asked once more at the
        recovered model; it needs ``saved`` too.

        ``batches`` are ``fresh``, as real clients would draw them, or those of the ``history``, which the
        convex bounds of a certificate need where batches are sampled. A retraining has fresh ones of its own.

        ``plans`` are those that other methods took already. ``changes`` are other values for the method's
        own settings, and for the plan's beta, evidence, rule, unfound, since.
        """
        row = names.look_up("method", method, names.METHODS)
        planned = {name: changes.pop(name) for name in PLANNED if name in changes}
        decided = (plans or Plans(history, malicious)).decided({**row.plan, **planned})
        names.check_settings(f"method {method!r}", row.function, {**row.settings, **changes})
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
                    f"noise is for the rollback model, where {method} does not begin; crab-hardened does"
                )
            start = noised_start(saved, decided, setup, noise)
            request |= {"noise": dict(noise), "start": RecoveryFolder(saved).start_sha256}
        self._run.keep(request, start)

    @property
    def done(self) -> int:
        """How many steps there are by now, those of earlier runs included."""
        return self._run.done

    @property
    def length(self) -> int:
        """About how many there will be."""
        return self._run.length

    @property
    def start(self) -> Vector:
        """The model that the first step starts from."""
        return self._run.start

    def __iter__(self) -> Iterator[Step]:
        """The steps."""
        return iter(self._run)

    def outcome(self) -> Outcome:
        """What has come out so far."""
        run = self._run
        stored = self.plan.history.bytes()["total"] if run.traits.needs_history else 0
        steps = tuple(run.tables)
        return Outcome(
            self.method, run.model, self.plan, steps, self._fleet.cost, run.seconds, stored, run.anchored
        )


def _clients(setup: Setup, method: str, batches: str) -> Fleet:
    """The simulated clients, at the time of the recovery or at that of the history."""
    if batches not in names.BATCHES:
        raise ConfigError(f"batches are {' or '.join(names.BATCHES)}, got {batches!r}")
    if batches == "history":
        return setup.fleet
    return setup.fleet_again(2 if method == names.REFERENCE else 1)


def _constants(setup: Setup, plan: Plan, batches: str) -> dict[str, Any]:
    """C, ρ and whether batches are full, where they are known of these clients: softmax regression."""
    known = known_assumptions(setup, plan)
    affine = known.local_affine()
    if affine is None:
        raise ConfigError(
            f"proof needs a convex loss: {setup.config.model!r} is none, softmax is; recover without it"
        )
    if not known.full_batch and batches != "history":
        raise ConfigError(
            "proof needs answers with the history's batches, which are sampled here: --set batches=history"
        )
    return {"centre": affine[0], "spread": affine[1], "full_batch": known.full_batch}


class Plans:
    """The decisions over one history, each taken once, whichever methods go by it."""

    def __init__(self, history: History, malicious: Collection[ClientId]) -> None:
        self._history, self._malicious = history, malicious
        self._taken: list[tuple[Mapping[str, Any], Plan]] = []

    def decided(self, settings: Mapping[str, Any]) -> Plan:
        """The plan by these settings."""
        for known, taken in self._taken:
            if known == settings:
                return taken
        found = plan(self._history, self._malicious, **settings)
        self._taken.append((dict(settings), found))
        return found


def recover_to_end(
    method: str, history: History, malicious: Collection[ClientId], setup: Setup, **changes: Any
) -> Outcome:
    """Recover from beginning to end."""
    recovery = RecoveryRun(method, history, malicious, setup, **changes)
    for _ in recovery:
        pass
    return recovery.outcome()


def poisoned(history: History) -> Outcome:
    """The model as the attack left it."""
    return Outcome("poisoned", history.final_model())


def measure_outcome(setup: Setup, outcome: Outcome, retrained: Vector | None = None) -> dict[str, Any]:
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
        "contact_rounds": sum(bool(step["asked"]) for step in outcome.steps) + bool(outcome.anchor),
        "client_rounds": sum(len(step["asked"]) for step in outcome.steps) + outcome.anchor,
        "sample_gradients": outcome.cost.sample_gradients,
        "seconds": outcome.seconds,
        "bytes": outcome.bytes,
        "predicted": _predicted(outcome),
        "distance": None if retrained is None else float(np.linalg.norm(outcome.model - retrained)),
    }


def _predicted(outcome: Outcome) -> str | None:
    """How far a replay can be trusted, in one sentence; None of other methods."""
    state = outcome.steps[-1].get("replay") if outcome.steps else None
    if state is None or outcome.plan is None:
        return None
    history = outcome.plan.history
    start = history.model(outcome.plan.rollback_round)
    return predicted_error(ReplayState(**state), start, outcome.model, history.charter.layout)


def attack_success_of(setup: Setup, model: Vector, most: int | None = None) -> AttackSuccess | None:
    """ASR, where the attack has a trigger; on the first ``most`` test examples, or on all."""
    attack = setup.config.attack
    if attack is None or "trigger" not in names.settable(names.look_up("attack", attack.name, names.ATTACKS)):
        return None
    trigger = Trigger(**attack.settings.get("trigger", {}))
    target = attack.settings.get("target", 0)
    x, y = setup.dataset.test_x[:most], setup.dataset.test_y[:most]
    return attack_success(setup.predictor.predict, model, x, y, target=target, trigger=trigger)
