"""The history that another selection would have kept of the same training, without training again."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from fedcrab.errors import HistoryError
from fedcrab.history import Everything, History
from fedcrab.history.selection import Selection
from fedcrab.types import Round


def rerecord(history: History, path: Path, selection: Selection) -> History:
    """Record every round of a history that kept everything once more, by this selection."""
    charter = history.charter
    if not isinstance(charter.selection, Everything):
        raise HistoryError(f"{history.path}: only a history recorded with Everything() can be recorded anew")
    _check_unbroken(history)
    with History.create(
        path,
        history.initial_model(),
        initial_loss=charter.initial_loss,
        selection=selection,
        layout=charter.layout,
        aggregation=charter.aggregation,
        seed=charter.seed,
        gram_limit=charter.gram_limit,
        sketch_size=charter.sketch_size,
        notes=charter.notes,
    ) as other:
        for entry in history.rounds:
            other.record(_round(history, entry.index))
    return History.open(path)


def _check_unbroken(history: History) -> None:
    """Every round starts from the model after the one before; else its step is not to be known."""
    for before, after in pairwise(history.rounds):
        if after.start != before.after:
            raise HistoryError(
                f"{history.path}: round {after.index} starts from another model than round {before.index} "
                "ended with, such as a recovered one; only an unbroken history can be recorded anew"
            )


def _round(history: History, index: int) -> Round:
    """A round as it was given to be recorded. The step is the difference of the models around it."""
    entry, start = history.rounds[index], history.model(index)
    last = index == len(history.rounds) - 1
    after = history.final_model() if last else history.model(index + 1)
    step = np.asarray(after - start, np.float32)
    return Round(index, start, history.updates(index), step, entry.loss, entry.divergence, entry.rejected)
