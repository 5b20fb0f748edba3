"""Compute the cells of one training: train once, then recover with every method.

Each result is written to disk as soon as it is known. An interrupted training resumes after its last round.
An interrupted recovery starts again, so that its time is measured without a gap. The training is recorded
with everything, and recorded again for each selection that a method needs.
"""

from __future__ import annotations

import fcntl
import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedcrab import __version__
from fedcrab.errors import FedcrabError, HistoryError
from fedcrab.experiment import names
from fedcrab.experiment.cell_cache import CellCache, CellResult, Point, key_of
from fedcrab.experiment.matrix import Cell
from fedcrab.experiment.recovery import Outcome, RecoveryRun, measure_outcome, poisoned
from fedcrab.experiment.run import MembershipTest, membership_test
from fedcrab.experiment.setup import Setup, open_for_training, prepare, rerecord, run
from fedcrab.experiment.suite import selection_table
from fedcrab.files import make_directory
from fedcrab.history import Everything, History
from fedcrab.history.selection import Selection
from fedcrab.history.snapshots import ENDING, Snapshots
from fedcrab.types import Layout, Vector

EVERYTHING, KEPT = "everything", "kept-"
RETRAINED = {"history": "retrained", "fresh": "retrained-fresh"}


class HistoryCache:
    """A directory with the histories of a training and its retrained models."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def trained(self, setup: Setup, tell: Callable[[int], None]) -> History:
        """Return the history of everything: the stored one, or one that is recorded now or resumed."""
        path = self._place / EVERYTHING
        if (found := _whole(path)) is not None:
            return found
        with _opened(setup, path) as history:
            for step in run(setup, history):
                tell(step.round + 1)
        return History.open(path)

    def selected(self, history: History, selection: Selection) -> History:
        """Return the history of the same training under another selection."""
        if isinstance(selection, Everything):
            return history
        path = self._place / f"{KEPT}{key_of(selection_table(selection))}"
        return _whole(path) or rerecord(history, _emptied(path), selection)

    def has_retrained(self, batches: str) -> bool:
        """Return whether the model retrained with these batches is stored."""
        return len(self._retrained(batches)) == 1

    def keep_retrained(self, layout: Layout, model: Vector, batches: str) -> None:
        """Store the model that all distances are measured to; it stays when the histories are deleted."""
        directory = _emptied(self._place / RETRAINED[batches])
        make_directory(directory.absolute())
        Snapshots(directory).put_model(layout, model)

    def retrained(self, layout: Layout, batches: str) -> Vector | None:
        """Return the model retrained with these batches; None if it is missing or damaged."""
        if not self.has_retrained(batches):
            return None
        place, name = self._place / RETRAINED[batches], self._retrained(batches)[0].stem
        try:
            return Snapshots(place).model(name, layout)
        except HistoryError:
            return None

    def _retrained(self, batches: str) -> list[Path]:
        return list((self._place / RETRAINED[batches]).glob(f"*{ENDING}"))

    def clear(self) -> None:
        """Delete the histories, which are large."""
        for path in (self._place / EVERYTHING, *self._place.glob(f"{KEPT}*")):
            _emptied(path)


def _whole(path: Path) -> History | None:
    """Return the history at a path if it is closed, otherwise None."""
    try:
        history = History.open(path) if path.exists() else None
    except HistoryError:
        return None
    return history if history is not None and history.closed else None


def _opened(setup: Setup, path: Path) -> History:
    """Return a history to record into: that of an interrupted training if undamaged, otherwise a new one."""
    if path.exists():
        try:
            return open_for_training(setup, path, resume=True)
        except HistoryError:
            _emptied(path)
    return open_for_training(setup, path, resume=False)


def _emptied(path: Path) -> Path:
    if path.exists():
        shutil.rmtree(path)
    return path


Tell = Callable[[dict[str, Any]], None]


def compute(
    cells: Sequence[Cell],
    store: CellCache,
    tell: Tell,
    *,
    workers: int,
    keep: bool = False,
    there: Collection[str] = (),
) -> None:
    """Compute the missing cells of one training.

    ``keep`` leaves the histories in place. ``there`` are keys of finished cells that are not in ``store``.
    """
    place = store.work(cells[0].training)
    with _exclusive(place):
        missing = [cell for cell in cells if cell.key not in there and not store.has_result(cell.key)]
        histories = HistoryCache(place)
        if missing:
            setup = prepare(cells[0].config, workers=workers)
            try:
                TrainingCells(setup, histories, store, tell, workers).run(_ordered(missing, cells, histories))
            finally:
                setup.close()
        if not keep:
            histories.clear()


def _ordered(missing: Sequence[Cell], cells: Sequence[Cell], histories: HistoryCache) -> list[Cell]:
    """Retraining first, even if only its model is missing, because all distances are measured to it."""
    first = [
        c
        for c in cells
        if c.method.name == names.REFERENCE
        and (c in missing or not histories.has_retrained(c.method.batches))
    ]
    return [*first, *(c for c in missing if c not in first)]


class TrainingCells:
    """Computes the cells of one training, one after another."""

    def __init__(
        self, setup: Setup, histories: HistoryCache, store: CellCache, tell: Tell, workers: int
    ) -> None:
        self._setup, self._histories, self._store = setup, histories, store
        self._tell, self._workers = tell, workers

    def run(self, cells: Sequence[Cell]) -> None:
        """Train, then compute each cell; a cell that fails does not stop the others."""
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
    ) -> CellResult:
        layout = history.charter.layout
        outcome, curve = self._outcome(cell, history)
        if cell.method.name == names.REFERENCE:
            self._histories.keep_retrained(layout, outcome.model, cell.method.batches)
        retrained = self._histories.retrained(layout, cell.method.batches)
        row = measure_outcome(self._setup, outcome, retrained)
        row.pop("method")
        row["seconds_a_round"] = row["seconds"] / row["rounds"] if row["rounds"] else None
        row["capped"] = sum(len(step["capped"]) for step in outcome.steps)
        if test is not None:
            row |= test.row(outcome.model)
        made = {**_run_conditions(self._workers), "wall": round(time.perf_counter() - started, 3)}
        return CellResult(cell.identity, {name: _finite(value) for name, value in row.items()}, curve, made)

    def _outcome(self, cell: Cell, history: History) -> tuple[Outcome, tuple[Point, ...]]:
        method, curve = cell.method, list[Point]()
        if method.selection is None:
            return poisoned(history), tuple((e.index, 0, _finite(e.loss), None) for e in history.rounds)
        source = self._histories.selected(history, method.selection)
        bad, spent = self._setup.attackers.clients, 0
        options = {**dict(method.plan), **dict(method.settings)}
        options["batches"], probe = method.batches, self._setup.probe
        recovery = RecoveryRun(method.name, source, bad, self._setup, **options)
        for step in recovery:
            spent += len(step.asked)
            loss, accuracy = _finite(probe.loss(step.model)), _finite(probe.accuracy(step.model))
            curve.append((step.round, spent, loss, accuracy))
            self._doing(method.label, recovery.done, recovery.length)
        return recovery.outcome(), tuple(curve)


@contextmanager
def _exclusive(place: Path) -> Iterator[None]:
    """Wait until no other process works on this training."""
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _run_conditions(workers: int) -> dict[str, Any]:
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


def _finite(value: Any) -> Any:
    """Return the value; None for a number that is not finite, which JSON cannot represent."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
