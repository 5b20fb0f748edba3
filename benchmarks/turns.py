"""Programs that take turns as processes: each runs one round and waits until all others have run theirs.

So all of them run under the same conditions within seconds, whatever else the machine does. A program that
waits for its turn sleeps. The messages that they exchange are in contestants/trial.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Timer
from typing import IO, Generic, TypeVar

LONGEST = 900  # seconds that a round may take
Name = TypeVar("Name")


@dataclass
class Contestant(Generic[Name]):
    """A running process, or the problem that ended it."""

    name: Name
    process: subprocess.Popen[str]
    errors: IO[bytes] = field(repr=False)
    result: dict | None = None
    problem: str | None = None

    @property
    def going(self) -> bool:
        return self.result is None and self.problem is None

    def turn(self) -> None:
        """Let it run a round."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; `listen` reports this
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        self.listen()

    def listen(self) -> None:
        """Wait until it has run a round, has reported, or has ended."""
        assert self.process.stdout is not None
        late = Timer(LONGEST, self.process.kill)
        late.start()
        try:
            for line in self.process.stdout:
                if line.startswith("ROUND"):
                    return
                if line.startswith("RESULT "):
                    self.result = json.loads(line.removeprefix("RESULT "))
                    return
        finally:
            late.cancel()
        self.problem = self._last_words()

    def _last_words(self) -> str:
        if self.process.wait() == -9:
            return f"a round took more than {LONGEST // 60} minutes"
        self.errors.seek(0)
        return (self.errors.read().decode(errors="replace").strip().splitlines() or ["no result"])[-1]


def start(name: Name, command: Sequence[str], environment: Mapping[str, str]) -> Contestant[Name]:
    """Start a program and let it run its first round, which does not count."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the contestant
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=dict(environment),
    )
    contestant = Contestant(name, process, errors)
    contestant.listen()
    return contestant


def take_turns(contestants: Sequence[Contestant[Name]], said: Callable[[int], None]) -> None:
    """Run round by round until all have reported or ended; ``said`` gets the number of finished turns."""
    turns = 0
    while any(each.going for each in contestants):
        for each in contestants:
            if each.going:
                each.turn()
        turns += 1
        said(turns)
    for each in contestants:
        each.process.kill()
        each.process.wait()


def tell(turns: int) -> None:
    """Print the count on one line."""
    print(f"\r{turns} turns", end="", file=sys.stderr, flush=True)
