"""The demo: all methods if the simulator is installed, otherwise recording, planning and a replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import RenderableType

from fedcrab.errors import HistoryError
from fedcrab.extras import has_extra
from fedcrab.history import History
from fedcrab.progress import SILENT, Progress


class Demo(Protocol):
    """The result of a demo."""

    @property
    def history(self) -> History:
        """The history, to try other commands on."""
        ...

    def to_table(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        ...

    def tables(self) -> list[RenderableType]:
        """Return tables for the terminal."""
        ...


@contextmanager
def run_demo(out: Path | None = None, progress: Progress = SILENT) -> Iterator[Demo]:
    """Run the demo that the installed packages allow."""
    if out is not None and (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        raise HistoryError(f"{out}: already exists; choose another path")
    if has_extra("simulate"):
        progress.stage("Loading the simulator")
        from fedcrab.demo.full import run_full_demo

        with run_full_demo(out, progress) as story:
            yield story
    else:
        progress.stage("Training with hidden attackers")
        from fedcrab.demo.small import record_and_plan

        with record_and_plan(out) as small:
            yield small
