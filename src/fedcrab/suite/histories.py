"""The histories of one training: everything it did, and what each selection would have kept of that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from fedcrab.errors import HistoryError
from fedcrab.experiment.rerecord import rerecord
from fedcrab.experiment.setup import Setup, open_history, run
from fedcrab.history import Everything, History
from fedcrab.history.disk import make_directory
from fedcrab.history.selection import Selection
from fedcrab.history.snapshots import ENDING, Snapshots
from fedcrab.suite.identity import key_of
from fedcrab.types import Layout, Vector

EVERYTHING, KEPT, RETRAINED = "everything", "kept-", "retrained"


class Histories:
    """A directory with the histories of a training, and the model that training again gave."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def trained(self, setup: Setup, tell: Callable[[int], None]) -> History:
        """The history of everything: found, or gone on with where an interrupted training left it."""
        path = self._place / EVERYTHING
        if (found := _whole(path)) is not None:
            return found
        with _opened(setup, path) as history:
            for step in run(setup, history):
                tell(step.round + 1)
        return History.open(path)

    def selected(self, history: History, selection: Selection) -> History:
        """What another selection would have kept of the same training."""
        if isinstance(selection, Everything):
            return history
        path = self._place / f"{KEPT}{key_of({type(selection).__name__: asdict(selection)})}"
        return _whole(path) or rerecord(history, _emptied(path), selection)

    @property
    def has_retrained(self) -> bool:
        """Whether the retrained model is at hand."""
        return len(self._retrained()) == 1

    def keep_retrained(self, layout: Layout, model: Vector) -> None:
        """Keep the model that all distances are measured to; it is small, and outlives the histories."""
        directory = _emptied(self._place / RETRAINED)
        make_directory(directory.absolute())
        Snapshots(directory).put_model(layout, model)

    def retrained(self, layout: Layout) -> Vector | None:
        """The retrained model, where it is at hand and whole."""
        if not self.has_retrained:
            return None
        try:
            return Snapshots(self._place / RETRAINED).model(self._retrained()[0].stem, layout)
        except HistoryError:
            return None

    def _retrained(self) -> list[Path]:
        return list((self._place / RETRAINED).glob(f"*{ENDING}"))

    def clear(self) -> None:
        """Delete the histories, which are large."""
        for path in (self._place / EVERYTHING, *self._place.glob(f"{KEPT}*")):
            _emptied(path)


def _whole(path: Path) -> History | None:
    """A history that was recorded to its end."""
    try:
        history = History.open(path) if path.exists() else None
    except HistoryError:
        return None
    return history if history is not None and history.closed else None


def _opened(setup: Setup, path: Path) -> History:
    """A history to record into, from where an interrupted training left it; damaged, from the beginning."""
    if path.exists():
        try:
            return open_history(setup, path, resume=True)
        except HistoryError:
            _emptied(path)
    return open_history(setup, path, resume=False)


def _emptied(path: Path) -> Path:
    if path.exists():
        shutil.rmtree(path)
    return path
