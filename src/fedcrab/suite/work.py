"""One training and every method that recovers from it; each result is on the disk as soon as it is known.

An interrupted training goes on from its last round. An interrupted recovery begins again, so that its time
is measured in one piece.
"""

from __future__ import annotations

import fcntl
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedcrab import __version__
from fedcrab.errors import FedcrabError
from fedcrab.experiment.recovery import Outcome, Recovery, judged, poisoned
from fedcrab.experiment.setup import Setup, prepare
from fedcrab.experiment.shadow import MembershipTest, membership_test
from fedcrab.history import History
from fedcrab.suite.cells import Cells, Finished, Point
from fedcrab.suite.expansion import Cell
from fedcrab.suite.histories import Histories

Tell = Callable[[dict[str, Any]], None]


def compute(cells: Sequence[Cell], store: Cells, tell: Tell, *, workers: int, keep: bool = False) -> None:
    """Compute every cell of one training that is not there yet; ``keep`` leaves the histories in place."""
    place = store.work(cells[0].training)
    with _alone(place):
        missing = [cell for cell in cells if not store.sound(cell.key)]
        histories = Histories(place)
        if missing:
            setup = prepare(cells[0].config, workers=workers)
            try:
                Work(setup, histories, store, tell, workers).run(_ordered(missing, cells, histories))
            finally:
                setup.close()
        if not keep:
            histories.clear()


def _ordered(missing: Sequence[Cell], cells: Sequence[Cell], histories: Histories) -> list[Cell]:
    """Retraining first, also where only its model is missing: all distances are measured to it."""
    first = [c for c in cells if c.method.name == "retrain" and (c in missing or not histories.has_retrained)]
    return [*first[:1], *(c for c in missing if c not in first[:1])]


class Work:
    """The cells of one training, computed one after another."""

    def __init__(self, setup: Setup, histories: Histories, store: Cells, tell: Tell, workers: int) -> None:
        self._setup, self._histories, self._store = setup, histories, store
        self._tell, self._workers = tell, workers

    def run(self, cells: Sequence[Cell]) -> None:
        """Train, then compute each cell; one that cannot be computed does not hold up the others."""
        started = time.perf_counter()
        rounds = self._setup.config.rounds
        history = self._histories.trained(self._setup, lambda done: self._doing("training", done, rounds))
        test = self._membership() if cells[0].membership else None
        for cell in cells:
            try:
                finished = self._finished(cell, history, test, started)
            except FedcrabError as error:
                self._tell({"failed": cell.key, "why": str(error)})
                continue
            self._store.write(finished)
            self._tell({"finished": cell.key, "wall": finished.made["wall"]})
            started = time.perf_counter()

    def _doing(self, what: str, done: int, of: int) -> None:
        self._tell({"doing": what, "done": done, "of": of})

    def _membership(self) -> MembershipTest:
        self._doing("shadow training", 0, 1)
        return membership_test(self._setup, self._setup.attackers.clients)

    def _finished(
        self, cell: Cell, history: History, test: MembershipTest | None, started: float
    ) -> Finished:
        layout = history.charter.layout
        outcome, curve = self._outcome(cell, history)
        if cell.method.name == "retrain":
            self._histories.keep_retrained(layout, outcome.model)
        row = judged(self._setup, outcome, self._histories.retrained(layout))
        row.pop("method")
        row["seconds_a_round"] = row["seconds"] / row["rounds"] if row["rounds"] else None
        row["capped"] = sum(len(step["capped"]) for step in outcome.steps)
        if test is not None:
            told = test.of(outcome.model)
            row |= {
                "misr": told.recall,
                "misr_balanced_accuracy": told.balanced_accuracy,
                "misr_auc": told.auc,
            }
        made = {**_circumstances(self._workers), "wall": round(time.perf_counter() - started, 3)}
        return Finished(cell.identity, {name: _real(value) for name, value in row.items()}, curve, made)

    def _outcome(self, cell: Cell, history: History) -> tuple[Outcome, tuple[Point, ...]]:
        method, curve = cell.method, list[Point]()
        if method.selection is None:
            return poisoned(history), tuple((e.index, 0, _real(e.loss), None) for e in history.rounds)
        source = self._histories.selected(history, method.selection)
        bad, spent = self._setup.attackers.clients, 0
        told = {**dict(method.plan), **dict(method.settings)}
        recovery, probe = Recovery(method.name, source, bad, self._setup, **told), self._setup.probe
        for step in recovery:
            spent += len(step.asked)
            loss, accuracy = _real(probe.loss(step.model)), _real(probe.accuracy(step.model))
            curve.append((step.round, spent, loss, accuracy))
            self._doing(method.label, recovery.done, recovery.length)
        return recovery.outcome(), tuple(curve)


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Wait until no other process works on this training."""
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _circumstances(workers: int) -> dict[str, Any]:
    import torch

    return {
        "fedcrab": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "workers": workers,
        "load": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _real(value: Any) -> Any:
    """None for what JSON cannot hold: a loss beyond all numbers is where a method failed."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
