"""Work in forked processes that may be killed, and calls that are made again until they work."""

from __future__ import annotations

import os
import signal
import struct
import traceback
from collections.abc import Callable
from typing import Any

from fedcrab import HistoryError
from torture.faults import Faults

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
                result = call()
            except HistoryError as error:
                self.errors.append(str(error))
            else:
                assert attempt in (0, PATIENCE) or not self._lasting, "worked on a disk that fails"
                return result
            if not self._lasting or attempt == PATIENCE - 1:
                self._faults.disarm()
        raise AssertionError(f"failed {len(self.errors)} times: {self.errors}")


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
