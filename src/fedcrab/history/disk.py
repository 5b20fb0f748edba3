"""The few things a history does to a file system. Whole or absent: never half a file under its own name."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import count
from pathlib import Path

from fedcrab.errors import DamagedError, HistoryError

Part = bytes | memoryview
_COUNTER = count()
TEMPORARY = ".tmp"  # the ending of a file that has not got its name yet


@contextmanager
def explained(what: str) -> Iterator[None]:
    """An operating-system error as one sentence that says what failed and what is safe."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise HistoryError(
            f"{what}: {reason}; nothing that was acknowledged is lost, try again when the cause is gone"
        ) from error


def write_named(path: Path, parts: Iterable[Part]) -> str:
    """Write a file under a temporary name, force it to the disk, then give it its name; gives its sha256."""
    return _write_then_name(path.parent / f".{path.name}{TEMPORARY}", parts, lambda _digest: path)


def write_addressed(directory: Path, parts: Iterable[Part], *, ending: str) -> str:
    """Write a file whose name is the sha256 of its content; gives that hash.

    The name is durable only after :func:`sync_directory`, so that several files can share one.
    """
    temporary = directory / f".new-{next(_COUNTER)}{TEMPORARY}"
    return _write_then_name(temporary, parts, lambda digest: directory / (digest + ending))


def _write_then_name(temporary: Path, parts: Iterable[Part], name: Callable[[str], Path]) -> str:
    temporary.unlink(missing_ok=True)  # what a failed write left is never built upon
    digest = hashlib.sha256()
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            for part in parts:
                digest.update(part)
                _write_all(fd, memoryview(part).cast("B"))
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(name(digest.hexdigest()))
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return digest.hexdigest()


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def sync_directory(directory: Path) -> None:
    """Force the names in a directory to the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_again(path: Path) -> None:
    """Write a file's content over itself and force it to the disk.

    Where forcing it failed once, the system may take for written what never was; a second forcing would
    then succeed and do nothing.
    """
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        at = 0
        while piece := os.pread(fd, 2**20, at):
            at += os.pwrite(fd, piece, at)
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """Make a directory, and those above it that are missing, each name forced to the disk."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def read_regular(path: Path, *, limit: int) -> bytes:
    """The content of a plain file of at most ``limit`` bytes; no link is followed."""
    with _open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise DamagedError(f"{path}: {size} bytes where at most {limit} are possible")
        return file.read()


def hash_regular(path: Path) -> str:
    """The sha256 of a plain file, read in pieces; no link is followed."""
    with _open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open_regular(path: Path) -> BufferedReader:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise DamagedError(f"{path}: {_missing(error)}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedError(f"{path}: not a plain file")
    return os.fdopen(fd, "rb")


def _missing(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "missing"
    if error.errno == errno.ELOOP:
        return "a link, where the file itself must be"
    return error.strerror or str(error)
