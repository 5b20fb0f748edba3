"""Trainings side by side, each in a process of its own, until every cell is there.

With as many trainings as cores each gets one core; a lone training gets them all, unless told otherwise.
Two on one core each are faster than one on two: what a server does alone between rounds then keeps only one
core waiting.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any

from fedcrab.errors import ConfigError
from fedcrab.simulate.fleet import cores
from fedcrab.simulate.workers import KEEP_PAGES
from fedcrab.suite.cells import Cells
from fedcrab.suite.expansion import Cell
from fedcrab.suite.job import request_of

PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from fedcrab.suite.job import main; main()"
)
ENDED = "ended"


@dataclass(frozen=True)
class News:
    """What is told of a training: what it is doing, that a cell is finished or failed, that it has ended."""

    training: str
    table: dict[str, Any] = field(default_factory=dict)


def trainings(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells by the training that they share, each cell once."""
    groups: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.training, {}).setdefault(cell.key, cell)
    return {training: list(group.values()) for training, group in groups.items()}


def run_jobs(
    cells: Sequence[Cell], store: Cells, *, jobs: int | None = None, keep: bool = False
) -> Iterator[News]:
    """Compute the cells that are missing, news as they come. Leaving the loop ends what is running."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs must be 1 or more, got {jobs}")
    groups = [group for group in trainings(cells).values() if not all(store.sound(c.key) for c in group)]
    side_by_side = min(jobs or cores(), max(len(groups), 1))
    each = cores() // (jobs or side_by_side)
    waiting: Queue[tuple[str, str]] = Queue()
    for group in groups:
        request = request_of(group, store.results, workers=each if each > 1 else 0, keep=keep)
        waiting.put((group[0].training, request))
    news: Queue[News] = Queue()
    started = [_Job(waiting, news) for _ in range(side_by_side if groups else 0)]
    try:
        left = len(groups)
        while left:
            told = news.get()
            left -= ENDED in told.table
            yield told
    finally:
        for job in started:
            job.end()


class _Job:
    """A process that computes one training after another, and a thread that passes on what it says."""

    def __init__(self, waiting: Queue[tuple[str, str]], news: Queue[News]) -> None:
        self._waiting, self._news = waiting, news
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()
        if self._process is not None:
            self._process.kill()  # whatever it was writing is whole or absent
        self._thread.join()

    def _serve(self) -> None:
        with suppress(Empty):
            while True:
                training, request = self._waiting.get_nowait()
                try:
                    self._compute(training, request)
                finally:
                    self._news.put(News(training, {ENDED: True}))
        if self._process is not None:
            self._process.communicate()

    def _compute(self, training: str, request: str) -> None:
        if self._process is None or self._process.poll() is not None:
            self._process = _started()
        for line in _answers(self._process, request):
            table = json.loads(line)
            if ENDED in table:
                return
            self._news.put(News(training, table))
        why = f"the process of a training ended with code {self._process.wait()}"
        self._news.put(News(training, {"failed": None, "why": why}))


def _started() -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603  our own interpreter and program
        [sys.executable, "-c", PROGRAM, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**KEEP_PAGES, **os.environ},
        process_group=0,  # Ctrl-C is for the command, which then ends its jobs
    )


def _answers(process: subprocess.Popen[str], request: str) -> Iterator[str]:
    if process.stdin is None or process.stdout is None:
        return
    with suppress(BrokenPipeError):  # it is dead; its code tells
        process.stdin.write(request + "\n")
        process.stdin.flush()
    yield from iter(process.stdout.readline, "")  # the stream itself would be closed with this generator
