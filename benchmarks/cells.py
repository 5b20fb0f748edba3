"""Cells of a benchmark in small JSON files, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # histories that nobody will read again
Cell = tuple[str, str, Callable[[], Any]]  # the file, the cell in it, what makes it


def fill(directory: Path, cells: Iterable[Cell], *, minutes: float) -> bool:
    """Make the cells that are missing, for so long; whether all are there then."""
    directory.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * minutes
    for name, key, make in cells:
        found = read(directory, name)
        if key in found:
            continue
        if time.monotonic() > until:
            return False
        found[key] = make()
        rows = ",\n".join(f" {json.dumps(k)}: {json.dumps(found[k])}" for k in sorted(found))
        (directory / f"{name}.json").write_text(f"{{\n{rows}\n}}\n")
        print(name, key, flush=True)
    return True


def run(
    about: str | None, directory: Path, cells: Callable[[], Iterable[Cell]], *tables: Callable[[], str]
) -> None:
    """A benchmark's command line: make the cells that are missing, then print the tables."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.table and not fill(directory, cells(), minutes=arguments.minutes):
        print("there is more to do; the same command goes on")
    print("\n\n".join(table() for table in tables))


def read(directory: Path, name: str) -> dict[str, Any]:
    path = directory / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}
