"""Recordings under one kind of fault, at one point after the other, and what they leave."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fedcrab import HistoryError
from torture import recording
from torture.children import Child, Stubborn
from torture.faults import ERRORS, Faults, Kind, Mode, Operation, read_log
from torture.power import Disk
from torture.recording import CLOSED, CREATED, Undisturbed


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


class Trial:
    """A recording, and how it goes when nothing happens."""

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
        again = Child(lambda _tell: self._watched(Mode.KILL, 1 + n * 7 % 30, 0, recording.go_on) and None)
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
        fault = (Mode.LASTING, 1 + n * 7 % 30, error)
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
