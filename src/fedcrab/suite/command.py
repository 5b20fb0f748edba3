"""What the command ``bench`` does: compute what is missing of a suite, and write its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from fedcrab.errors import ConfigError
from fedcrab.simulate.fleet import cores
from fedcrab.suite import markup
from fedcrab.suite.cells import Cells
from fedcrab.suite.description import load_suite
from fedcrab.suite.expansion import Cell, expand
from fedcrab.suite.live import Board, Screen
from fedcrab.suite.schedule import run_jobs
from fedcrab.suite.tables import Table, summary
from fedcrab.suite.tidy import Row, columns_of, rows_of, to_csv, write_text


@dataclass(frozen=True)
class Benched:
    """A suite as far as it is finished."""

    place: Path
    rows: list[Row]
    table: Table
    cells: int
    failed: dict[str, str]

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        counted = {"cells": self.cells, "finished": len(self.rows)}
        return {**counted, "failed": self.failed, "written": str(self.place), "rows": self.rows}

    def tables(self) -> list[RenderableType]:
        """For people."""
        shown = RichTable(*self.table.columns, title=f"{self.place}", title_justify="left")
        for row in self.table.rows:
            shown.add_row(*(Text(word) for word in row))
        files = "results.csv, table.md, table.csv and table.tex"
        told = f"{len(self.rows)} of {self.cells} cells; {self.place}/ has {files}"
        failures = [Text(f"{key}: {why}") for key, why in self.failed.items()]
        return [shown, Text(self.table.note), *failures, Text(told)]


def bench_command(
    path: Path, results: Path, *, jobs: int | None = None, keep: bool = False, run: bool = True
) -> Benched:
    """Compute what is missing, unless ``run`` is off; write the tables of what there is."""
    suite = load_suite(path)
    cells, store = expand(suite), Cells(results)
    failed = compute_missing(cells, store, jobs=jobs, keep=keep) if run else {}
    rows = rows_of(cells, store)
    if not rows:
        raise ConfigError(next(iter(failed.values()), f"{results}: no cell of {path} is there yet"))
    table = summary(rows, suite.measures, reference=suite.reference)
    place = results / path.stem
    write_tables(place, rows, table)
    return Benched(place, rows, table, len(cells), failed)


def compute_missing(
    cells: Sequence[Cell], store: Cells, *, jobs: int | None = None, keep: bool = False
) -> dict[str, str]:
    """Compute what is missing or damaged, saying so; why some could not be computed."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    for sentence in store.damaged([cell.key for cell in cells]):
        console.print(f"computed again: {sentence}", soft_wrap=True)
    board = Board(cells, store, jobs=jobs or cores())
    with Screen(board) as screen:
        for news in run_jobs(cells, store, jobs=jobs, keep=keep):
            screen.hear(news)
    return board.failed


def write_tables(place: Path, rows: Sequence[Row], table: Table) -> None:
    """The tidy results, and the table in three markups."""
    write_text(place / "results.csv", to_csv(rows, columns_of(rows)))
    write_text(place / "table.md", markup.markdown(table))
    write_text(place / "table.csv", markup.comma_separated(table))
    write_text(place / "table.tex", markup.latex(table))
