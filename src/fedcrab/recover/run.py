"""Runs one recovery: refuses early, resumes after a kill, saves each step, asks once more at the end.

The simulator, Flower and FLARE use it. The caller passes the fleet, the rule and the epochs.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcrab.aggregate.mean import Aggregate
from fedcrab.aggregate.server_rule import ServerRule
from fedcrab.errors import ConfigError
from fedcrab.history import History
from fedcrab.html import html_pairs
from fedcrab.recover.answers import AnswerFolder, RecordedFleet, ask_at, honest_clients
from fedcrab.recover.folder import MODEL, RecoveryFolder, write_result
from fedcrab.recover.methods import METHODS, Method, default_method
from fedcrab.recover.saved_steps import resumable, saved_model, saved_steps
from fedcrab.recover.step import Step
from fedcrab.recover.subtract_and_distil import Distiller
from fedcrab.rollback.decision import Plan, plan
from fedcrab.state_dicts import unflatten
from fedcrab.types import ClientId, Fleet, Vector


def _check_outside(saved: Path, history: History) -> None:
    """Refuse a folder inside the history, where every foreign file counts as damage."""
    if Path(saved).resolve().is_relative_to(Path(history.path).resolve()):
        raise ConfigError(f"{saved}: a recovery cannot be written into its history; choose another directory")


class MethodRun:
    """A method that runs on a plan: an iterator of steps, then the model."""

    def __init__(
        self,
        method: str,
        plan: Plan,
        fleet: Fleet,
        *,
        settings: Mapping[str, Any] | None = None,
        aggregate: Aggregate | None = None,
        epochs: int | None = None,
        saved: Path | None = None,
        anchor: bool = False,
        probe: Distiller | None = None,
    ) -> None:
        """Raise, before anything is written, if the history or the settings do not allow the method.

        ``settings`` override the method's own. ``saved`` is a directory that stores each step, so that a
        killed recovery can resume. ``anchor`` stores every answer for the certificate and asks every honest
        client once more at the recovered model; it needs ``saved``. ``probe`` are the server's own examples,
        if any.
        """
        if saved is not None:
            _check_outside(saved, plan.history)
        self.method, self.plan, self.traits = method, plan, METHODS[method]
        self.settings = {**self.traits.settings, **(settings or {})}
        self._saved, self._bare, self._epochs = saved, fleet, epochs
        self._anchor = anchor and saved is not None
        kept = anchor or self.traits.keeps_answers(self.settings)
        self._answers = AnswerFolder(saved, plan.history.charter.layout) if kept and saved else None
        self._fleet = fleet if self._answers is None else self._recorded(self._answers)
        self._fixed: dict[str, Any] = {"aggregate": aggregate, "epochs": epochs}
        self._fixed |= {"probe": probe} if self.traits.needs_probe else {}
        if isinstance(aggregate, ServerRule):
            first = self.traits.start_round(plan)
            aggregate.restore(plan.history.server_state(first), round=first)
        self._start: Step | None = None
        self._last: Vector | None = None
        self.seconds = 0.0  # spent by the method, including the clients' time
        self.tables = saved_steps(saved) if saved else []  # each step as Step.to_table returns it
        try:
            self._steps = self.traits.function(plan, self._fleet, **self.settings, **self._fixed)
        except TypeError as error:
            raise ConfigError(f"method {method!r}: {error}") from error

    def _recorded(self, answers: AnswerFolder) -> Fleet:
        return RecordedFleet(self._bare, answers.save, epochs=self._epochs)

    def keep(self, request: Mapping[str, Any], start: Step | None = None) -> None:
        """Store the steps under this request, and resume from those that are already there.

        ``request`` identifies this recovery, together with the method and its settings. Existing folders
        resume by it, so its contents must not change. ``start`` is the step before the first one, if the
        method does not start at its own beginning.
        """
        if self._saved is None:
            raise ConfigError("to store its steps, a recovery needs a directory: pass saved")
        extra: dict[str, Any] = {"anchor": True} if self._anchor else {}
        extra |= {} if self.traits.version == 1 else {"version": self.traits.version}
        self._start = start
        self._steps = resumable(
            self._saved,
            self.traits.function,
            self.plan,
            self._fleet,
            request={"method": self.method, **self.settings, **request, **extra},
            start=start,
            **self.settings,
            **self._fixed,
        )

    @property
    def done(self) -> int:
        """The number of steps so far, including those of earlier runs."""
        return len(self.tables)

    @property
    def length(self) -> int:
        """About how many steps there will be."""
        return self.traits.length(self.plan, self.settings)

    @property
    def start(self) -> Vector:
        """The model that the first step starts from."""
        return (
            self._start.model
            if self._start is not None
            else self.traits.start_model(self.plan, self.settings)
        )

    @property
    def model(self) -> Vector:
        """The model after the last step so far."""
        if self._last is not None:
            return self._last
        if self._saved is not None and self.tables:
            return saved_model(self._saved, self.plan.history.charter.layout)
        return self.start

    @property
    def anchored(self) -> int:
        """How many clients are asked once more at the recovered model."""
        return len(honest_clients(self.plan)) if self._anchor else 0

    def __iter__(self) -> Iterator[Step]:
        """Yield the steps; only the time of the method itself is counted."""
        while True:
            started = time.perf_counter()
            step = next(self._steps, None)
            self.seconds += time.perf_counter() - started
            if step is None:
                self._ask_once_more()
                return
            self.tables.append(step.to_table())
            self._last = step.model
            yield step

    def _ask_once_more(self) -> None:
        """Collect every honest client's answer to the recovered model, unless an earlier run has it."""
        if self._answers is None or not self._anchor:
            return
        started, model = time.perf_counter(), self.model
        if not self._answers.has(model, honest_clients(self.plan)):
            ask_at(self.plan, self._recorded(self._answers), model, epochs=self._epochs)
        self.seconds += time.perf_counter() - started


ALIASES = {"crab": "crab-hardened"}


@dataclass(frozen=True)
class Recovery:
    """The result of a recovery: the model, how it was made, and its folder."""

    method: str
    plan: Plan = field(repr=False)
    model: Vector = field(repr=False)
    steps: tuple[dict[str, Any], ...] = field(repr=False)
    path: Path = field(default=Path())  # the folder: model.safetensors, summary.json, the steps

    @property
    def client_rounds(self) -> int:
        """The number of local trainings."""
        return sum(len(step["asked"]) for step in self.steps)

    @property
    def sha256(self) -> str:
        """The hash of the model file."""
        return str(RecoveryFolder.open(self.path).summary["model_sha256"])

    def state_dict(self, like: Any) -> dict[str, Any]:
        """Return the model as a state dict; each tensor has the type and device that it has in ``like``."""
        return unflatten(self.model, like)

    def __repr__(self) -> str:
        """Return a summary in one line."""
        return (
            f"Recovery({self.method}, {len(self.steps)} rounds from round {self.plan.rollback_round} on, "
            f"{self.client_rounds} client-rounds, {str(self.path)!r})"
        )

    def _repr_html_(self) -> str:
        rows = {
            "method": self.method,
            "without": ", ".join(self.plan.malicious),
            "from round": self.plan.rollback_round,
            "rounds": len(self.steps),
            "client-rounds": self.client_rounds,
            "model": self.path / MODEL,
            "sha256": self.sha256,
        }
        return html_pairs("Recovery", rows)


def recover_on_clients(
    history: History,
    fleet: Fleet,
    *,
    malicious: list[str],
    out: Path,
    tell: Callable[[str], None],
    method: str | None = None,
    settings: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    aggregate: Aggregate | None = None,
    since: Mapping[str, int] | None = None,
    anchor: bool = False,
    told: Mapping[str, Any] | None = None,
    on_step: Callable[[Step], None] | None = None,
    **planned: Any,
) -> Recovery:
    """Recover a history on the clients of an engine into ``out``/method, resuming what was killed.

    ``method`` is replay by default if the history keeps the updates, else crab-hardened. ``settings`` replace
    its own; without any, a replay of few rounds asks in each of them. ``since`` says from which round on
    clients are malicious that were honest before. ``anchor`` keeps every answer for the certificate and asks
    every honest client once more at the result. ``told`` distinguishes this recovery from others and is part
    of its summary. ``on_step`` is called with each step, such as one of :mod:`fedcrab.loggers`. ``planned``
    replaces the plan's beta or unfound. ``tell`` is called with each sentence about the progress.
    """
    if method is None:
        method, why = default_method(history)
        if why:
            tell(why)
    name = ALIASES.get(method, method)
    row = _method(name)
    own = _settings(name, row, settings or {})
    decided = plan(history, malicious, since=since or None, **{**row.plan, **planned})
    for warning in decided.warnings:
        tell(warning)
    asked = {key: getattr(decided, key) for key in planned}
    run = MethodRun(
        name,
        decided,
        fleet,
        settings=own,
        aggregate=aggregate,
        epochs=epochs,
        saved=out / name,
        anchor=anchor,
    )
    run.keep({**asked, "epochs": epochs, **(told or {})})
    for step in run:
        tell(f"round {step.round} replayed with {len(step.clients)} clients")
        if on_step is not None:
            on_step(step)
    write_result(out / name, decided, name, run.model, told)
    return Recovery(name, decided, run.model, tuple(run.tables), out / name)


def recover(
    history: History | str | os.PathLike[str],
    fleet: Fleet,
    *,
    malicious: Collection[ClientId],
    out: str | os.PathLike[str] = "recovered",
    method: str | None = None,
    since: Mapping[ClientId, int] | None = None,
    on_step: Callable[[Step], None] | None = None,
    aggregate: Aggregate | None = None,
    epochs: int | None = None,
    anchor: bool = False,
    settings: Mapping[str, Any] | None = None,
    **planned: Any,
) -> Recovery:
    """Rebuild the model of a history without these clients, on a fleet of honest ones, into ``out``/method.

    The default ``method`` is replay if the history has the updates, otherwise crab-hardened. ``settings``
    override the method's own, ``planned`` the plan's (beta, unfound). ``since`` is the round from which each
    client is malicious, if it was honest before. ``on_step`` is called with each step. Each step is saved:
    the same call resumes after an interruption.
    """
    return recover_on_clients(
        history if isinstance(history, History) else History.open(history),
        fleet,
        malicious=[malicious] if isinstance(malicious, str) else sorted(malicious),
        out=Path(out),
        tell=logging.getLogger("fedcrab").info,
        method=method,
        settings=settings,
        epochs=epochs,
        aggregate=aggregate,
        since=since,
        anchor=anchor,
        on_step=on_step,
        **planned,
    )


def _method(name: str) -> Method:
    if name not in METHODS:
        raise ConfigError(f"no method {name!r}; there are crab, {', '.join(METHODS)}")
    return METHODS[name]


def _settings(name: str, row: Method, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the given settings; raise ``ConfigError`` if the method does not have one of them."""
    known = inspect.signature(row.function).parameters
    if unknown := [setting for setting in given if setting not in known]:
        raise ConfigError(f"method {name!r} has no setting {unknown[0]!r}")
    return given
