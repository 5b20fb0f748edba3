"""The board: what is done, what is left, and about how long it takes."""

from pathlib import Path

import pytest
from rich.console import Console

from fedcrab.experiment.cell_cache import CellCache, CellResult
from fedcrab.experiment.matrix import Cell, expand
from fedcrab.experiment.run_suite import SuiteProgress, duration
from fedcrab.experiment.scheduler import JobEvent
from fedcrab.experiment.suite import Suite

CELLS = expand(Suite(methods=["crab-paper"], seeds=[0, 1, 2], fractions=[0.25, 0.5]))


def told(cell: Cell, wall: float) -> JobEvent:
    return JobEvent(cell.training, {"finished": cell.key, "wall": wall})


def test_the_estimate_by_hand(tmp_path: Path) -> None:
    """Two trainings done: poisoned 0.2 s, retrained 60 and 80 s, Crab 10 s. Four are left, on two cores."""
    store = CellCache(tmp_path)
    for cell, wall in zip(CELLS[:3], (0.2, 60.0, 10.0), strict=True):
        store.write(CellResult(cell.identity, {}, (), {"wall": wall}))
    board = SuiteProgress(CELLS, store, jobs=2)
    assert board.left == 15
    for cell, wall in zip(CELLS[3:6], (0.2, 80.0, 10.0), strict=True):
        assert board.handle(told(cell, wall))
    assert board.left == 12
    assert board.estimate() == pytest.approx(4 * (0.2 + 70 + 10) / 2)
    assert board.progress() == "6 of 18 cells, about 3 min left"


def test_nothing_is_guessed_from_nothing(tmp_path: Path) -> None:
    board = SuiteProgress(CELLS, CellCache(tmp_path), jobs=2)
    assert board.estimate() is None
    assert board.progress() == "0 of 18 cells"


def test_it_shows_what_is_running_and_what_failed(tmp_path: Path) -> None:
    board, first = SuiteProgress(CELLS, CellCache(tmp_path), jobs=2), CELLS[0]
    assert board.handle(JobEvent(first.training, {"doing": "training", "done": 3, "of": 40})) is None
    console = Console(width=120, record=True, file=(tmp_path / "shown").open("w"))
    console.print(board.shown())
    shown = console.export_text()
    console.file.close()
    assert "seed 0: training 3/40" in shown
    assert "0/9" in shown
    assert "no luck" in str(board.handle(JobEvent(first.training, {"failed": first.key, "why": "no luck"})))
    assert board.failed == {first.key: "no luck"}


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h")])
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
