"""The fault shim from Python: compiled, preloaded into a process, and told what to do there."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
TESTS = SOURCE.parents[1]
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}


class Mode(IntEnum):
    """What happens at operation n; the numbers are those of the C side."""

    NONE = 0
    KILL = 1  # the process is gone before it
    TORN_KILL = 2  # the process is gone in the middle of it, where it is a write
    ONCE = 3  # it fails
    LASTING = 4  # it fails, and so does every later one
    SHORT = 5  # from it on, writes write half


class Kind(IntEnum):
    """What an operation does; the numbers are those of the C side."""

    CREATE = 1
    WRITE = 2
    TRUNCATE = 3
    SYNC = 4
    RENAME = 5
    UNLINK = 6
    MKDIR = 7
    MARK = 8


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of the log."""

    kind: Kind
    error: int
    offset: int
    path: str
    more: bytes  # what was written, or the new name

    @property
    def done(self) -> bool:
        return not self.error


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(directory: Path) -> Path:
    """Compile the shim; its place."""
    library = directory / "faults.so"
    command = [compiler() or "cc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"]
    subprocess.run(command, check=True)
    return library


def python(module: str, *, request: str, library: Path | None = None) -> str:
    """What a Python process, with the shim in it or without, answers to a request; it must end well."""
    paths = [str(TESTS), *(p for p in [os.environ.get("PYTHONPATH")] if p)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment |= {"LD_PRELOAD": str(library)} if library else {}
    # One thread: what is forked must not wait for the threads that a fork does not take along.
    environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-m", module]
    run = subprocess.run(command, env=environment, input=request, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    return run.stdout


class Faults:
    """The shim in this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.faults_seen.restype = ctypes.c_long
        self._library.faults_free_sync(1)

    def watch(self, directory: Path) -> None:
        self._library.faults_watch(os.fsencode(directory.resolve()))

    def arm(self, mode: Mode, n: int, error: int = 0) -> None:
        self._library.faults_arm(int(mode), ctypes.c_long(n), error)

    def disarm(self) -> None:
        self._library.faults_disarm()

    def seen(self) -> int:
        """Operations since the directory was named, or since the shim was armed."""
        return int(self._library.faults_seen())

    def log(self, fd: int) -> None:
        self._library.faults_log(fd)

    def mark(self, what: int) -> None:
        """Write a line of our own into the log."""
        self._library.faults_mark(ctypes.c_long(what))


def read_log(content: bytes) -> Iterator[Operation]:
    head = struct.Struct("=iiqII")
    at = 0
    while at < len(content):
        kind, error, offset, first, second = head.unpack_from(content, at)
        at += head.size
        path, more = content[at : at + first], content[at + first : at + first + second]
        at += first + second
        yield Operation(Kind(kind), error, offset, os.fsdecode(path), more)
