"""What the command ``bench`` does: compute the missing cells of a suite, show progress, write its tables."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from fedcrab.errors import ConfigError
from fedcrab.experiment.cell_cache import CellCache
from fedcrab.experiment.matrix import Cell, Labels, expand
from fedcrab.experiment.rehearsal import rehearse
from fedcrab.experiment.scheduler import JobEvent, run_jobs
from fedcrab.experiment.suite import load_suite
from fedcrab.experiment.suite_tables import (
    ResultTable,
    Row,
    axis_word,
    columns_of,
    no_formula,
    over_settings,
    rows_of,
    summary,
    to_csv,
    write_text,
)
from fedcrab.simulate.machine import cores
from fedcrab.terminal import console, print_to_stderr
from fedcrab.terminal_table import Column, FittedTable

MOST_LINES = 25  # settings shown at a time


class SuiteProgress:
    """Finished cells per setting, what each running training does, and an estimate of the time left."""

    def __init__(self, cells: Sequence[Cell], store: CellCache, *, jobs: int) -> None:
        self._cells = {cell.key: cell for cell in cells}
        self._jobs = jobs
        self._walls: dict[str, float] = {}
        for cell in self._cells.values():
            if store.has_result(cell.key) and (found := store.find(cell.key)) is not None:
                self._walls[cell.key] = float(found.made.get("wall", 0.0))
        self._before = set(self._walls)
        self._doing: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    @property
    def left(self) -> int:
        """The number of missing cells."""
        return len(self._cells) - len(self._walls)

    def handle(self, news: JobEvent) -> str | None:
        """Handle an event; returns a line to print if a cell has finished or failed."""
        table = news.table
        if "doing" in table:
            self._doing[news.training] = f"{table['doing']} {table['done']}/{table['of']}"
        elif "side_by_side" in table:
            self._jobs = table["side_by_side"]
        elif "ended" in table:
            self._doing.pop(news.training, None)
        elif "finished" in table:
            self._walls[table["finished"]] = table["wall"]
            return f"{self.progress()}  {self._name(table['finished'])} ({table['wall']:.1f} s)"
        elif "failed" in table:
            self.failed[table["failed"] or news.training] = table["why"]
            return f"{self._name(table['failed'] or news.training)}: {table['why']}"
        return None

    def _name(self, key: str) -> str:
        cell = self._cells.get(key)
        return " ".join(axis_word(label) for _, label in cell.labels) if cell else key

    def progress(self) -> str:
        """Finished cells of all, and about how long the rest takes."""
        seconds = self.estimate()
        remaining = "" if seconds is None else f", about {duration(seconds)} left"
        return f"{len(self._walls)} of {len(self._cells)} cells{remaining if self.left else ''}"

    def estimate(self) -> float | None:
        """Estimated seconds left, from the times of similar cells; None if there are none."""
        walls: dict[tuple[Any, ...], list[float]] = {}
        for key, wall in self._walls.items():
            for kind in _kinds(self._cells[key]):
                walls.setdefault(kind, []).append(wall)
        left = [cell for key, cell in self._cells.items() if key not in self._walls]
        alike = [next((walls[kind] for kind in _kinds(cell) if kind in walls), None) for cell in left]
        known = [median(found) for found in alike if found]
        return sum(known) / self._jobs if len(known) == len(left) else None

    def shown(self) -> RenderableType:
        """Return the progress as a table."""
        settings: dict[Labels, list[str]] = {}
        for key, cell in self._cells.items():
            settings.setdefault(cell.setting, []).append(key)
        table = FittedTable(self.progress(), "setting", "cells", Column("now", prose=True))
        busy = sorted(settings.items(), key=lambda item: not self._running(item[1]))
        unfinished = [(s, keys) for s, keys in busy if any(key not in self._walls for key in keys)]
        for setting, keys in unfinished[:MOST_LINES]:
            done = sum(key in self._walls for key in keys)
            table.add_row(
                " ".join(axis_word(v) for _, v in setting), f"{done}/{len(keys)}", self._running(keys)
            )
        hidden = len(settings) - min(len(unfinished), MOST_LINES)
        return Group(table, Text(f"{hidden} more settings, finished or waiting" if hidden else ""))

    def _running(self, keys: Sequence[str]) -> str:
        trainings = {self._cells[key].training: self._cells[key].config.seed for key in keys}
        entries = [f"seed {trainings[t]}: {what}" for t, what in self._doing.items() if t in trainings]
        return "; ".join(entries)


def _kinds(cell: Cell) -> tuple[tuple[Any, ...], ...]:
    """Groups of similar cells, the most similar first."""
    config = cell.config
    training = (config.data, config.model, config.rounds)
    return (*training, cell.method.label), training, (config.model,), ()


def duration(seconds: float) -> str:
    """Return seconds in readable units."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class ProgressDisplay:
    """Progress on standard error: a live table on a terminal, otherwise one line per finished cell."""

    def __init__(self, board: SuiteProgress) -> None:
        self._board, self._console = board, console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._drawn = 0.0

    def __enter__(self) -> ProgressDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def handle(self, news: JobEvent) -> None:
        """Show an event."""
        line = self._board.handle(news)
        if not self._console.is_terminal:
            if line:
                self._console.print(line, soft_wrap=True)
        elif line or time.monotonic() - self._drawn > 0.2:
            self._live.update(self._board.shown(), refresh=True)
            self._drawn = time.monotonic()


def fitted(title: str, table: ResultTable) -> FittedTable:
    """Return a table for the terminal; if it is too wide, the last columns are left out first."""
    after = table.columns.index("method") if "method" in table.columns else len(table.columns)
    ranks = [max(0, place - after - 1) for place in range(len(table.columns))]  # one measure always stays
    columns = [
        Column(name, rank, left=place <= after)
        for place, (name, rank) in enumerate(zip(table.columns, ranks, strict=True))
    ]
    shown = FittedTable(title, *columns)
    for row in table.rows:
        shown.add_row(*row)
    return shown


LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "λ": r"$\lambda$",
    "δ": r"$\delta$",
    "β": r"$\beta$",
    "×": r"$\times$",
    "−": r"$-$",
}


def markdown(table: ResultTable) -> str:
    """Return a table as GitHub markdown."""
    lines = [_markdown_line(table.columns), "|" + "---|" * len(table.columns)]
    lines += [_markdown_line(row) for row in table.rows]
    return "\n".join(lines) + "\n" + (f"\n{table.note}\n" if table.note else "")


def _markdown_line(words: Sequence[str]) -> str:
    safe = (word.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ") for word in words)
    return "| " + " | ".join(safe) + " |"


def comma_separated(table: ResultTable) -> str:
    """Return a table as CSV for spreadsheets."""
    text = io.StringIO(newline="")
    rows = ([no_formula(word) for word in row] for row in (table.columns, *table.rows))
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def latex(table: ResultTable) -> str:
    """Return a table as a LaTeX tabular with booktabs rules."""
    lines = [r"\begin{tabular}{" + "l" * len(table.columns) + "}", r"\toprule"]
    lines += [_latex_line(table.columns), r"\midrule", *(_latex_line(row) for row in table.rows)]
    lines += [r"\bottomrule", r"\end{tabular}"]
    note = [f"% {line}" for line in table.note.splitlines()]
    return "\n".join([*note, *lines]) + "\n"


def _latex_line(words: Sequence[str]) -> str:
    return " & ".join(escaped(word) for word in words) + r" \\"


def escaped(word: str) -> str:
    """Return text with LaTeX's special characters escaped."""
    return "".join(LATEX.get(letter, letter) for letter in word)


@dataclass(frozen=True)
class BenchResult:
    """The results of a suite, as far as it has been run."""

    place: Path
    rows: list[Row]
    table: ResultTable
    cells: int
    failed: dict[str, str]
    over: ResultTable | None = None  # differences over all settings

    def to_table(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        counted = {"cells": self.cells, "finished": len(self.rows)}
        return {**counted, "failed": self.failed, "written": str(self.place), "rows": self.rows}

    def tables(self) -> list[RenderableType]:
        """Return tables for the terminal."""
        shown = fitted(f"{self.place}", self.table)
        files = "results.csv, table.md, table.csv and table.tex"
        footer = f"{len(self.rows)} of {self.cells} cells; {self.place}/ has {files}"
        failures = [Text(f"{key}: {why}") for key, why in self.failed.items()]
        over: list[RenderableType] = [fitted("", self.over), Text(self.over.note)] if self.over else []
        return [shown, Text(self.table.note), *over, *failures, Text(footer)]


def bench_command(
    path: Path,
    results: Path,
    *,
    jobs: int | None = None,
    keep: bool = False,
    run: bool = True,
    cluster: str | None = None,
) -> BenchResult:
    """Compute the missing cells unless ``run`` is False; write the tables of all finished cells."""
    if cluster and (jobs is not None or keep):
        raise ConfigError("--jobs and --keep do not apply to a --cluster; leave them out")
    suite = load_suite(path)
    cells, store = expand(suite), CellCache(results, path.stem)
    failed = compute_missing(cells, store, jobs=jobs, keep=keep, cluster=cluster) if run else {}
    rows = rows_of(cells, store)
    if not rows:
        raise ConfigError(next(iter(failed.values()), f"{results}: no cell of {path} has been computed yet"))
    table = summary(rows, suite.measures, reference=suite.reference)
    over = over_settings(rows, reference=suite.reference)
    place = results / path.stem
    write_tables(place, rows, table, over)
    return BenchResult(place, rows, table, len(cells), failed, over)


def compute_missing(
    cells: Sequence[Cell],
    store: CellCache,
    *,
    jobs: int | None = None,
    keep: bool = False,
    cluster: str | None = None,
) -> dict[str, str]:
    """Compute missing and damaged cells; return the reason for each one that failed.

    Raises ``ConfigError`` before anything is computed if a cell has impossible settings.
    """
    rehearse(cell for cell in cells if not store.has_result(cell.key))
    for sentence in store.damaged([cell.key for cell in cells]):
        print_to_stderr(f"computed again: {sentence}")
    board = SuiteProgress(cells, store, jobs=jobs or cores())
    with ProgressDisplay(board) as screen:
        for news in run_jobs(cells, store, jobs=jobs, keep=keep, cluster=cluster):
            screen.handle(news)
    return board.failed


def write_tables(place: Path, rows: Sequence[Row], table: ResultTable, *more: ResultTable | None) -> None:
    """Write all results as CSV, and the summary in three formats; ``more`` tables follow it in markdown."""
    write_text(place / "results.csv", to_csv(rows, columns_of(rows)))
    write_text(place / "table.md", "\n".join(markdown(one) for one in (table, *more) if one))
    write_text(place / "table.csv", comma_separated(table))
    write_text(place / "table.tex", latex(table))
