"""One recovery, run: refused early, resumed where it was killed, each step kept, asked once more at the end.

The simulator and Flower both run it. Who has a setup passes what it says: the fleet, the rule, the epochs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedcrab.aggregate.mean import Aggregate
from fedcrab.errors import ConfigError
from fedcrab.recover.answers import AnswerFolder, RecordedFleet, ask_at, honest_clients
from fedcrab.recover.methods import METHODS
from fedcrab.recover.saved_steps import resumable, saved_model, saved_steps
from fedcrab.recover.step import Step
from fedcrab.rollback.decision import Plan
from fedcrab.types import Fleet, Vector


class MethodRun:
    """A method at work on a plan: steps as they come, the model when they have."""

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
    ) -> None:
        """Refuse here, before anything is written, what the history or the settings do not allow.

        ``settings`` are other values than the method's own. ``saved`` is a directory in which each step is
        kept, and from which a killed recovery resumes. ``anchor`` has every answer kept for the certificate,
        and every honest client asked once more at the recovered model; it needs ``saved``.
        """
        self.method, self.plan, self.traits = method, plan, METHODS[method]
        self.settings = {**self.traits.settings, **(settings or {})}
        self._saved, self._bare, self._epochs = saved, fleet, epochs
        self._answers = AnswerFolder(saved, plan.history.charter.layout) if anchor and saved else None
        self._fleet = fleet if self._answers is None else self._recorded(self._answers)
        self._fixed = {"aggregate": aggregate, "epochs": epochs}
        self._start: Step | None = None
        self._last: Vector | None = None
        self.seconds = 0.0  # that the method itself took, the time of the clients included
        self.tables = saved_steps(saved) if saved else []  # each step as Step.to_table gives it
        try:
            self._steps = self.traits.function(plan, self._fleet, **self.settings, **self._fixed)
        except TypeError as error:
            raise ConfigError(f"method {method!r}: {error}") from error

    def _recorded(self, answers: AnswerFolder) -> Fleet:
        return RecordedFleet(self._bare, answers.save, epochs=self._epochs)

    def keep(self, request: Mapping[str, Any], start: Step | None = None) -> None:
        """Keep the steps under this request, and resume those that are there already.

        ``request`` is what tells this recovery from another one, beside the method and its settings; folders
        of before resume by it, so that what is in it must not change. ``start`` is what the first step goes
        on after, if not the method's own beginning.
        """
        if self._saved is None:
            raise ConfigError("a recovery is kept in a directory: give saved")
        told = {"anchor": True} if self._answers is not None else {}
        self._start = start
        self._steps = resumable(
            self._saved,
            self.traits.function,
            self.plan,
            self._fleet,
            request={"method": self.method, **self.settings, **request, **told},
            start=start,
            **self.settings,
            **self._fixed,
        )

    @property
    def done(self) -> int:
        """How many steps there are by now, those of earlier runs included."""
        return len(self.tables)

    @property
    def length(self) -> int:
        """About how many there will be."""
        return self.traits.length(self.plan, self.settings)

    @property
    def start(self) -> Vector:
        """The model that the first step starts from."""
        return self._start.model if self._start is not None else self.traits.start_model(self.plan)

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
        return len(honest_clients(self.plan)) if self._answers is not None else 0

    def __iter__(self) -> Iterator[Step]:
        """The steps; only the time that the method itself takes is counted."""
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
        """Every honest client's answer to the recovered model, unless an earlier run has it."""
        if self._answers is None:
            return
        started, model = time.perf_counter(), self.model
        if not self._answers.has(model, honest_clients(self.plan)):
            ask_at(self.plan, self._recorded(self._answers), model, epochs=self._epochs)
        self.seconds += time.perf_counter() - started
