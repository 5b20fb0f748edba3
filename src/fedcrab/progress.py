"""Show on standard error what a command is doing, before anything slow is imported.

A terminal shows one moving line, which is removed at the end. Otherwise there are plain lines: one per stage,
then one every few seconds. If a program asked for JSON and there is no terminal, nothing is shown.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from fedcrab.terminal import console, one_line, print_to_stderr

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn, Task, TaskID

EVERY = 10.0  # seconds between two plain lines of one stage


class Progress:
    """Shows the stages of a command. A stage may have a known number of steps."""

    def __init__(self, *, quiet: bool = False, moving: bool = True) -> None:
        """``quiet`` leaves out plain lines, for programs that read JSON; a terminal still shows progress."""
        self._terminal, self._quiet = moving and sys.stderr.isatty(), quiet
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._stage, self._total, self._done, self._printed_at = "", 0, 0, 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the moving line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def stage(self, what: str, *, total: int = 0, done: int = 0) -> None:
        """Start a stage. ``total`` is its number of steps if known, ``done`` how many are finished."""
        self._stage, self._total, self._done, self._printed_at = one_line(what), total, done, time.monotonic()
        if not self._terminal:
            self._tell(f"{self._stage} …")
            return
        bar = self._moving()
        if self._task is not None:
            bar.remove_task(self._task)
        self._task = bar.add_task(self._stage, total=total or None, completed=done, told="")

    def step(self, result: str = "") -> None:
        """Count one step of the stage as done; ``result`` is a short text to show."""
        self._done += 1
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, told=one_line(result))
        elif time.monotonic() - self._printed_at >= EVERY:
            self._printed_at = time.monotonic()
            counted = f"{self._done} of {self._total}" if self._total else str(self._done)
            self._tell(f"{self._stage}: {counted}{f', {result}' if result else ''}")

    def line(self, text: str) -> None:
        """Print a line that stays on the screen, even if ``quiet``."""
        if self._bar is not None:
            self._bar.console.print(one_line(text), soft_wrap=True)
        else:
            print_to_stderr(text)

    def _tell(self, line: str) -> None:
        if not self._quiet:
            print_to_stderr(line)
            sys.stderr.flush()

    def _moving(self) -> Bar:
        if self._bar is None:
            from rich.progress import Progress as Bar

            self._bar = Bar(*_columns(), console=console(stderr=True), transient=True)
            self._bar.start()
        return self._bar


def _columns() -> tuple[ProgressColumn, ...]:
    """Return a spinner, the stage and, where steps are counted, a bar and the time left."""
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Counted(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{int(task.completed)}/{int(task.total)}" if task.total else "")

    return (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        Counted(),
        BarColumn(20),
        TextColumn("{task.fields[told]}", markup=False),
        TimeRemainingColumn(),
    )


SILENT = Progress(quiet=True, moving=False)  # for callers that show no progress
