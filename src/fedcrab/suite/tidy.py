"""The results of a suite as one tidy table: a row a cell, a column an axis or a measure."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcrab.history.disk import explained, make_directory, write_named
from fedcrab.suite.cells import Cells
from fedcrab.suite.description import MEASURES
from fedcrab.suite.expansion import Cell

Row = dict[str, Any]
AFTER = (*MEASURES, "capped", "key")  # columns behind the axes


def rows_of(cells: Sequence[Cell], store: Cells) -> list[Row]:
    """A row for each cell that is finished; one that is damaged is refused."""
    rows = []
    for cell in cells:
        finished = store.find(cell.key)
        if finished is not None:
            measures = {name: finished.measures.get(name) for name in AFTER[:-1]}
            rows.append({**dict(cell.labels), **measures, "key": cell.key})
    return rows


def axes_of(rows: Sequence[Row]) -> list[str]:
    """The columns that say which cell a row is, method and seed last."""
    return [name for name in rows[0] if name not in AFTER] if rows else []


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Every column: axes first, then measures."""
    axes = dict.fromkeys(name for row in rows for name in row if name not in AFTER)
    return [*axes, *AFTER]


def to_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """As CSV; what is not known is an empty field."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
    return text.getvalue()


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    with explained(f"{path}: not written"):
        make_directory(path.absolute().parent)
        write_named(path, [text.encode()])
