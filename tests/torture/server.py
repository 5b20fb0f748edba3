"""A fork server with the fault shim in it: one child records under a fault, another looks at what is left.

Run as a process of its own; reads one JSON request, prints one JSON answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fedcrab import HistoryError
from torture import recording
from torture.faults import ERRORS, Faults, Kind, Mode, Operation, read_log
from torture.power import Disk
from torture.recording import CLOSED, CREATED, Undisturbed

PATIENCE = 2  # attempts under a lasting fault before its cause goes away


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
    for each in recording.rounds():
        stubborn(partial(history.record, each))
        tell(each.index)
    stubborn(history.close)
    tell(CLOSED)


def record_until_error(path: Path, selection: str, tell: Callable[[int], None]) -> None:
    try:
        recording.record(path, selection, tell)
    except HistoryError:
        return


def go_on_until_error(path: Path, selection: str) -> None:
    try:
        recording.go_on(path, selection)
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

    def points(self, fault: str, error: str, points: list[int]) -> Iterator[dict[str, Any]]:
        """Each point's problems under the named fault."""
        for n in points:
            shutil.rmtree(self._site, ignore_errors=True)
            self._site.mkdir()
            hit, problems = getattr(self, f"_{fault}")(n, ERRORS.get(error, 0))
            yield {"point": n, "problems": problems, "hit": hit}
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

    def _resume(self, n: int, error: int) -> tuple[bool, list[str]]:
        """Killed at n; then an operation fails while the recording is taken up, which ends that process."""
        first = Child(lambda tell: self._watched(Mode.KILL, n, 0, recording.record, tell) and None)
        fault = (Mode.LASTING, 1 + n * 7 % 60, error)
        again = Child(lambda _tell: self._watched(*fault, go_on_until_error) and None)
        problems = [again.said] if again.failed else []
        return first.killed, problems + self._checked(first)

    def _checked(self, child: Child) -> list[str]:
        return [child.said] if child.failed else self._look(child.told)

    def _look(self, told: list[int]) -> list[str]:
        look = Child(lambda _tell: json.dumps(self.undisturbed.problems(self._path, told)))
        return [look.said] if look.failed else list(json.loads(look.said))

    def operations(self, mode: Mode, n: int, error: int) -> list[Operation]:
        """The log of a recording that is told to try again whenever it fails."""
        shutil.rmtree(self._site, ignore_errors=True)
        self._site.mkdir()
        log = self.directory / "log"
        stubborn = Stubborn(self.faults, mode is Mode.LASTING)
        with log.open("wb") as file:

            def work(_tell: Callable[[int], None]) -> None:
                self.faults.log(file.fileno())
                self._watched(mode, n, error, record_stubbornly, stubborn, self.faults.mark)

            child = Child(work)
        assert not child.failed, child.said
        return list(read_log(log.read_bytes()))

    def power_losses(
        self, operations: list[Operation], loss: str, points: Collection[int]
    ) -> Iterator[dict[str, Any]]:
        """The power goes after each of these operations; each state that is left is looked at once."""
        disk, told, known = Disk(self._site), [], set()
        for n, operation in enumerate(operations, 1):
            disk.apply(operation)
            told += [operation.offset] if operation.kind is Kind.MARK else []
            if n in points:
                shutil.rmtree(self._site, ignore_errors=True)
                disk.after_power_loss(self._site, loss, seed=n)
                state = _digest(self._site), len(told)
                problems = [] if state in known else self._look(told)
                yield {"point": n, "problems": problems, "hit": state not in known}
                known.add(state)


def _digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        digest.update(f"{path}\0".encode() + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()


def _is_clear(message: str, site: Path) -> bool:
    """One line that names the place and says what to do."""
    return "\n" not in message and str(site) in message and "try again" in message


def main() -> None:
    request = json.load(sys.stdin)
    trial = Trial(Path(request["directory"]), request["selection"])
    fault, _, detail = request["fault"].partition(":")
    other = REQUESTS.get(fault)
    answer = other(trial, detail, request) if other else faulted(trial, fault, detail, request)
    print(json.dumps(answer))


def _strided(total: int, request: dict[str, Any]) -> list[int]:
    return [n for n in range(1, total + 1) if n % request["stride"] == request["offset"] % request["stride"]]


def faulted(trial: Trial, fault: str, detail: str, request: dict[str, Any]) -> dict[str, Any]:
    total = trial.count()
    return {"operations": total, "points": list(trial.points(fault, detail, _strided(total, request)))}


def power(trial: Trial, loss: str, request: dict[str, Any]) -> dict[str, Any]:
    operations = trial.operations(Mode.NONE, 0, 0)
    points = set(_strided(len(operations), request))
    return {"operations": len(operations), "points": list(trial.power_losses(operations, loss, points))}


def power_after_error(trial: Trial, loss: str, request: dict[str, Any]) -> dict[str, Any]:
    """Forcing fails for a while, and what was not forced is forgotten; then the power goes."""
    undisturbed = [o for o in trial.operations(Mode.NONE, 0, 0) if o.kind is not Kind.MARK]
    forced = [n for n, o in enumerate(undisturbed, 1) if o.kind is Kind.SYNC]
    found = []
    for n in _strided(len(forced), request):
        operations = trial.operations(Mode.LASTING, forced[n - 1], ERRORS["EIO"])
        first = next(i for i, o in enumerate(operations) if o.kind is Kind.SYNC and o.error)
        points = set(range(first, min(first + 100, len(operations))))
        found += [
            {**p, "point": [forced[n - 1], p["point"]]} for p in trial.power_losses(operations, loss, points)
        ]
    return {"operations": len(undisturbed), "points": found}


def log(trial: Trial, _detail: str, _request: dict[str, Any]) -> dict[str, Any]:
    """What the recording does, in its order."""
    operations = trial.operations(Mode.NONE, 0, 0)
    return {"operations": len(operations), "points": [[o.kind.name, o.path] for o in operations]}


REQUESTS = {"power": power, "power-after-error": power_after_error, "log": log}


if __name__ == "__main__":
    main()
