"""A fork server with the fault shim in it: one child records under a fault, another looks at what is left.

Run as a process of its own; reads one JSON request, prints one JSON answer.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedcrab import HistoryError

from torture import recording
from torture.faults import ERRORS, Faults, Mode
from torture.recording import CLOSED, CREATED, Undisturbed

PATIENCE = 3  # attempts under a lasting fault before its cause goes away


class Stubborn:
    """Calls again what failed, as a server would that is told to try again later."""

    def __init__(self, faults: Faults, lasting: bool) -> None:
        self._faults = faults
        self._lasting = lasting
        self.errors: list[str] = []

    def __call__(self, call: Callable[[], Any]) -> Any:
        for attempt in range(PATIENCE + 2):
            try:
                return call()
            except HistoryError as error:
                self.errors.append(str(error))
            if not self._lasting or attempt == PATIENCE - 1:
                self._faults.disarm()
        raise AssertionError(f"failed {len(self.errors)} times: {self.errors}")


def record_stubbornly(path: Path, selection: str, stubborn: Stubborn, tell: Callable[[int], None]) -> None:
    history = stubborn(lambda: recording.create(path, selection))
    tell(CREATED)
    for round in recording.rounds():
        stubborn(lambda round=round: history.record(round))
        tell(round.index)
    stubborn(history.close)
    tell(CLOSED)


def record_until_error(path: Path, selection: str, tell: Callable[[int], None]) -> None:
    try:
        recording.record(path, selection, tell)
    except HistoryError:
        return


class Child:
    """Work in a forked process: what it told before it ended, how it ended."""

    def __init__(self, work: Callable[[Callable[[int], None]], str | None]) -> None:
        told, tell = os.pipe()
        said, say = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os._exit(_run(work, tell, say))
        os.close(tell), os.close(say)
        self.told = [n for (n,) in struct.iter_unpack("q", _drain(told))]
        self.said = _drain(said).decode()
        _, status = os.waitpid(self.pid, 0)
        self.killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        self.failed = not self.killed and status != 0


def _run(work: Callable[[Callable[[int], None]], str | None], tell: int, say: int) -> int:
    try:
        said = work(lambda n: _send(tell, struct.pack("q", n)))
    except BaseException:
        _send(say, traceback.format_exc().encode())
        return 1
    _send(say, (said or "").encode())
    return 0


def _send(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]


def _drain(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read()


class Trial:
    """Recordings under one kind of fault, at one point after the other."""

    def __init__(self, directory: Path, selection: str) -> None:
        self.faults = Faults()
        self.directory = directory.resolve()
        self.selection = selection
        self.faults.watch(self.directory)  # all that is forced to the disk here is free
        self.undisturbed = Undisturbed.of(self.directory, selection)

    def count(self) -> int:
        """How many operations the recording has."""
        return int(Child(lambda _tell: str(self._watched(Mode.NONE, 0, 0, recording.record))).said)

    def _watched(self, mode: Mode, n: int, error: int, work: Callable[..., None], *rest: Any) -> int:
        self.faults.watch(self._site)
        self.faults.arm(mode, n, error)
        work(self._path, self.selection, *rest)
        return self.faults.seen()

    @property
    def _site(self) -> Path:
        return self.directory / "site"

    @property
    def _path(self) -> Path:
        return self._site / "runs" / "history"

    def points(self, name: str, points: list[int]) -> Iterator[dict[str, Any]]:
        """Each point's problems under the named fault."""
        for n in points:
            shutil.rmtree(self._site, ignore_errors=True)
            self._site.mkdir()
            child, problems = getattr(self, "_" + name.partition(":")[0])(n, ERRORS.get(name.partition(":")[2], 0))
            yield {"point": n, "problems": problems, "hit": child}
        shutil.rmtree(self._site, ignore_errors=True)

    def _kill(self, n: int, _error: int, mode: Mode = Mode.KILL) -> tuple[bool, list[str]]:
        child = Child(lambda tell: self._watched(mode, n, 0, recording.record, tell) and None)
        return child.killed, self._checked(child)

    def _torn(self, n: int, error: int) -> tuple[bool, list[str]]:
        return self._kill(n, error, Mode.TORN_KILL)

    def _twice(self, n: int, _error: int) -> tuple[bool, list[str]]:
        """Killed at n, and again while the recording is taken up."""
        first = Child(lambda tell: self._watched(Mode.KILL, n, 0, recording.record, tell) and None)
        again = Child(lambda _tell: self._watched(Mode.KILL, 1 + n * 7 % 60, 0, recording.go_on) and None)
        problems = [again.said] if again.failed else []
        return first.killed and again.killed, problems + self._checked(first)

    def _quit(self, n: int, error: int) -> tuple[bool, list[str]]:
        """Everything fails from n on; the process ends at the first error, a fresh one goes on."""
        child = Child(lambda tell: self._watched(Mode.LASTING, n, error, record_until_error, tell) and None)
        return True, self._checked(child)

    def _once(self, n: int, error: int, mode: Mode = Mode.ONCE) -> tuple[bool, list[str]]:
        stubborn = Stubborn(self.faults, mode is Mode.LASTING)

        def work(tell: Callable[[int], None]) -> str:
            self._watched(mode, n, error, record_stubbornly, stubborn, tell)
            return json.dumps(stubborn.errors)

        child = Child(work)
        if child.failed:
            return True, [child.said]
        errors = json.loads(child.said)
        problems = [f"unclear: {e!r}" for e in errors if not _is_clear(e, self._site)]
        return bool(errors), problems + self.undisturbed.final_problems(self._path)

    def _lasting(self, n: int, error: int) -> tuple[bool, list[str]]:
        return self._once(n, error, Mode.LASTING)

    def _short(self, n: int, error: int) -> tuple[bool, list[str]]:
        return self._once(n, error, Mode.SHORT)

    def _resumed(self, n: int, error: int) -> tuple[bool, list[str]]:
        """Killed at n; then everything fails once while the recording is taken up, at one point each."""
        raise NotImplementedError

    def _checked(self, child: Child) -> list[str]:
        if child.failed:
            return [child.said]
        look = Child(lambda _tell: json.dumps(self.undisturbed.problems(self._path, child.told)))
        return [look.said] if look.failed else list(json.loads(look.said))


def _is_clear(message: str, site: Path) -> bool:
    """One line that names the place and says what to do."""
    return "\n" not in message and str(site) in message and "try again" in message


def main() -> None:
    request = json.load(sys.stdin)
    trial = Trial(Path(request["directory"]), request["selection"])
    total = trial.count()
    points = [n for n in range(1, total + 1) if n % request["stride"] == request["offset"] % request["stride"]]
    found = list(trial.points(request["fault"], points))
    print(json.dumps({"operations": total, "points": found}))


if __name__ == "__main__":
    main()
