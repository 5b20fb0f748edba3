"""Recording a history anew, round by round."""

from pathlib import Path

import numpy as np
import pytest

from fedcrab import Everything, History, Selective
from fedcrab.errors import HistoryError
from fedcrab.experiment.setup import rerecord
from fedcrab.types import Round, Updates


def recorded(path: Path, starts: list[float]) -> History:
    """Two clients, two parameters, a step of (1, 1) a round, each from a start of its own."""
    vectors = np.ones((2, 2), np.float32)
    with History.create(path, np.zeros(2, np.float32), initial_loss=9.0, selection=Everything()) as history:
        for index, start in enumerate(starts):
            updates = Updates(("a", "b"), vectors, np.ones(2))
            model = np.full(2, start, np.float32)
            history.record(Round(index, model, updates, vectors[0], 8.0 - index, 0.1))
    return History.open(path)


def test_an_unbroken_history(tmp_path: Path) -> None:
    history = recorded(tmp_path / "h", [0, 1, 2])
    anew = rerecord(history, tmp_path / "again", Selective())
    assert [entry.after for entry in anew.rounds] == [entry.after for entry in history.rounds]
    np.testing.assert_array_equal(anew.final_model(), [3, 3])


def test_one_that_went_on_from_another_model_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    history = recorded(tmp_path / "h", [0, 1, 0.5])
    with pytest.raises(HistoryError, match="round 2 does not start from the model that round 1"):
        rerecord(history, tmp_path / "again", Selective())
    assert not (tmp_path / "again").exists()
