"""What is done and what is left of a suite, while it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedcrab.suite.cells import Cells
from fedcrab.suite.expansion import Cell, Labels
from fedcrab.suite.schedule import News

MOST_LINES = 25  # settings shown at a time


class Board:
    """Cells by setting, what each running training is doing, and an estimate of the time left."""

    def __init__(self, cells: Sequence[Cell], store: Cells, *, jobs: int) -> None:
        self._cells = {cell.key: cell for cell in cells}
        self._jobs = jobs
        self._walls: dict[str, float] = {}
        for cell in self._cells.values():
            if store.sound(cell.key) and (found := store.find(cell.key)) is not None:
                self._walls[cell.key] = float(found.made.get("wall", 0.0))
        self._before = set(self._walls)
        self._doing: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    @property
    def left(self) -> int:
        """How many cells are not there yet."""
        return len(self._cells) - len(self._walls)

    def hear(self, news: News) -> str | None:
        """Take note; a line worth printing where a cell is finished or failed."""
        told = news.table
        if "doing" in told:
            self._doing[news.training] = f"{told['doing']} {told['done']}/{told['of']}"
        elif "ended" in told:
            self._doing.pop(news.training, None)
        elif "finished" in told:
            self._walls[told["finished"]] = told["wall"]
            return f"{self.progress()}  {self._name(told['finished'])} ({told['wall']:.1f} s)"
        elif "failed" in told:
            self.failed[told["failed"] or news.training] = told["why"]
            return f"{self._name(told['failed'] or news.training)}: {told['why']}"
        return None

    def _name(self, key: str) -> str:
        cell = self._cells.get(key)
        return " ".join(_word(label) for _, label in cell.labels) if cell else key

    def progress(self) -> str:
        """Done of all, and about how long the rest takes."""
        seconds = self.estimate()
        told = "" if seconds is None else f", about {duration(seconds)} left"
        return f"{len(self._walls)} of {len(self._cells)} cells{told if self.left else ''}"

    def estimate(self) -> float | None:
        """Seconds left: each cell as its like took, those of its method first; None: nothing to go by."""
        walls: dict[tuple[Any, ...], list[float]] = {}
        for key, wall in self._walls.items():
            for kind in _kinds(self._cells[key]):
                walls.setdefault(kind, []).append(wall)
        left = [cell for key, cell in self._cells.items() if key not in self._walls]
        alike = [next((walls[kind] for kind in _kinds(cell) if kind in walls), None) for cell in left]
        known = [median(found) for found in alike if found]
        return sum(known) / self._jobs if len(known) == len(left) else None

    def shown(self) -> RenderableType:
        """The table."""
        settings: dict[Labels, list[str]] = {}
        for key, cell in self._cells.items():
            settings.setdefault(cell.setting, []).append(key)
        table = Table("setting", "cells", "now", title=self.progress(), title_justify="left")
        busy = sorted(settings.items(), key=lambda item: not self._running(item[1]))
        unfinished = [(s, keys) for s, keys in busy if any(key not in self._walls for key in keys)]
        for setting, keys in unfinished[:MOST_LINES]:
            done = sum(key in self._walls for key in keys)
            table.add_row(" ".join(_word(v) for _, v in setting), f"{done}/{len(keys)}", self._running(keys))
        hidden = len(settings) - min(len(unfinished), MOST_LINES)
        return Group(table, Text(f"{hidden} settings more, finished or waiting" if hidden else ""))

    def _running(self, keys: Sequence[str]) -> str:
        trainings = {self._cells[key].training: self._cells[key].config.seed for key in keys}
        told = [f"seed {trainings[t]}: {what}" for t, what in self._doing.items() if t in trainings]
        return "; ".join(told)


def _kinds(cell: Cell) -> tuple[tuple[Any, ...], ...]:
    """What a cell is like, closest first."""
    config = cell.config
    training = (config.data, config.model, config.rounds)
    return (*training, cell.method.label), training, (config.model,), ()


def _word(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """Seconds as people read them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Screen:
    """The board on standard error: alive on a terminal, else a line for each finished cell."""

    def __init__(self, board: Board) -> None:
        self._board, self._console = board, Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._drawn = 0.0

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def hear(self, news: News) -> None:
        """Show what has come."""
        line = self._board.hear(news)
        if not self._console.is_terminal:
            if line:
                self._console.print(line, soft_wrap=True)
        elif line or time.monotonic() - self._drawn > 0.2:
            self._live.update(self._board.shown(), refresh=True)
            self._drawn = time.monotonic()
