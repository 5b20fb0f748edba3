"""The cells of a benchmark, one line of JSON per cell, so that an interrupted run can resume."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # for histories that are deleted afterwards
Cell = tuple[str, str, Callable[[], Any]]  # its group, its name in the group, the function that computes it


def fill(path: Path, cells: Iterable[Cell], *, minutes: float) -> bool:
    """Compute missing cells for at most ``minutes``; return whether all cells are finished."""
    until = time.monotonic() + 60 * minutes
    for group, name, compute in cells:
        if name in read(path, group):
            continue
        if time.monotonic() > until:
            return False
        line = json.dumps({"group": group, "cell": name, "found": compute()})
        with path.open("a") as file:
            file.write(line + "\n")
        print(group, name, flush=True)
    return True


def run(
    about: str | None, path: Path, cells: Callable[[], Iterable[Cell]], *tables: Callable[[], str]
) -> None:
    """A benchmark's command line: compute the cells that are missing, then print the tables."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.table and not fill(path, cells(), minutes=arguments.minutes):
        print("some cells are missing; the same command resumes")
    print("\n\n".join(table() for table in tables))


def read(path: Path, group: str) -> dict[str, Any]:
    """Return the finished cells of one group, by name."""
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {row["cell"]: row["found"] for row in rows if row["group"] == group}
