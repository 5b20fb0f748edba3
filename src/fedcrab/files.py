"""Safe file operations. A file appears under its name only when it is complete.

Also: locks that allow one writer at a time, and bounded reads.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakSet

from fedcrab.errors import DamagedError, HistoryError
from fedcrab.sha256 import sha256_together

Part = bytes | memoryview
_COUNTER = count()
LONGEST_PATH = 4095  # bytes
TEMPORARY = ".tmp"  # ends the name of a file that is not complete yet


@contextmanager
def file_errors(what: str) -> Iterator[None]:
    """Turn operating-system errors into one sentence that says what failed and what is safe."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise HistoryError(
            f"{what}: {reason}; nothing that was acknowledged is lost, try again when the cause is gone"
        ) from error


def write_named(path: Path, parts: Iterable[Part]) -> str:
    """Write a file under a temporary name, fsync it, then rename it. Returns its sha256."""
    return _write_then_name(path.parent / f".{path.name}{TEMPORARY}", parts, lambda _digest: path)


def write_addressed(directory: Path, parts: Iterable[Part], *, ending: str) -> str:
    """Write a file that is named after the sha256 of its content. Returns that hash.

    The name is durable only after :func:`sync_directory`, so that several files can share one call.
    """
    return _write_then_name(_temporary(directory), parts, lambda digest: directory / (digest + ending))


def write_addressed_together(
    directory: Path,
    files: Sequence[Iterable[Part]],
    others: Sequence[Iterable[Part]] = (),
    *,
    ending: str,
    beside: Executor | None = None,
) -> list[str]:
    """Write files as :func:`write_addressed` does. Returns their hashes, then those of the other messages.

    All of them are hashed at the same time, which costs less than one after the other.
    """
    with ExitStack() as stack:
        new = [stack.enter_context(_NewFile(_temporary(directory))) for _ in files]
        written = [file.written(parts) for file, parts in zip(new, files, strict=True)]
        digests = sha256_together([*written, *others], beside)
        for file, digest in zip(new, digests, strict=False):
            file.name(directory / (digest + ending))
    return digests


def _temporary(directory: Path) -> Path:
    return directory / f".new-{next(_COUNTER)}{TEMPORARY}"


def _write_then_name(temporary: Path, parts: Iterable[Part], name: Callable[[str], Path]) -> str:
    with _NewFile(temporary) as new:
        (digest,) = sha256_together([new.written(parts)])
        new.name(name(digest))
    return digest


class _NewFile:
    """A file under a temporary name, which is removed if the file never gets its own."""

    def __init__(self, temporary: Path) -> None:
        self._path, self._named = temporary, False

    def __enter__(self) -> _NewFile:
        self._path.unlink(missing_ok=True)  # never reuse what a failed write left behind
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        return self

    def written(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Write these parts while the caller reads them."""
        for part in parts:
            _write_all(self._fd, memoryview(part).cast("B"))
            yield part

    def name(self, path: Path) -> None:
        """Fsync the file and give it its name."""
        os.fsync(self._fd)
        self._path.rename(path)
        self._named = True

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        if not self._named:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def append_line(path: Path, line: bytes, *, is_whole: Callable[[bytes], bool]) -> None:
    """Append a line to a file that several processes append to, and fsync it.

    The line is written completely or not at all. Text after the last line end, left by a killed process, is
    removed, unless ``is_whole`` says that only the line end is missing.
    """
    with _locked(path) as fd:
        size = os.fstat(fd).st_size
        tail = _tail(fd, size)
        whole = bool(tail) and is_whole(tail)
        kept = size if whole else size - len(tail)
        try:
            os.ftruncate(fd, kept)
            _write_all(fd, memoryview(b"\n" + line if whole else line))
            os.fsync(fd)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, kept)
            raise
        if not size:
            sync_directory(path.parent)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open a plain file, created if missing, that only this process may append to."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            state = os.fstat(fd)
            if not stat.S_ISREG(state.st_mode):
                raise OSError(errno.EINVAL, "not a plain file")
            if state.st_nlink:  # otherwise the name was given to another file while we waited
                yield fd
                return
        finally:
            os.close(fd)


def _tail(fd: int, size: int) -> bytes:
    """Return what follows the last line end."""
    tail = b""
    while size and b"\n" not in tail:
        start = max(0, size - 2**16)
        tail, size = os.pread(fd, size - start, start) + tail, start
    return tail.rpartition(b"\n")[2]


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable (fsync)."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_again(path: Path) -> None:
    """Write a file's content over itself and fsync it.

    After a failed fsync the system may believe that the data was written. A second fsync would then succeed
    without writing anything.
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
    """Create a directory and its missing parents, and make their names durable."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def read_regular(path: Path, *, limit: int) -> bytes:
    """Return the content of a plain file of at most ``limit`` bytes. Links are not followed."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise DamagedError(f"{path}: has {size} bytes, at most {limit} are allowed")
        return file.read()


def read_json(path: Path, *, limit: int, what: str = "a JSON table of values") -> dict[str, Any]:
    """Return the table in a JSON file of at most ``limit`` bytes. The file is not trusted."""
    try:
        table = json.loads(read_regular(path, limit=limit))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: not {what}") from error
    if not isinstance(table, dict):
        raise DamagedError(f"{path}: not {what}")
    return table


def hash_regular(path: Path) -> str:
    """Return the sha256 of a plain file, read in pieces. Links are not followed."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stored_path(text: object, source: Path) -> Path:
    """Return a path that is written in a file. The file is not trusted."""
    try:
        usable = isinstance(text, str) and 0 < len(os.fsencode(text)) <= LONGEST_PATH and "\0" not in text
    except UnicodeError:
        usable = False
    if not usable:
        raise DamagedError(f"{source}: contains an invalid path")
    return Path(str(text))


def open_regular(path: Path) -> BufferedReader:
    """Open a plain file for reading. Links are not followed."""
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
        return "this is a link; a plain file is required"
    return error.strerror or str(error)


class Lock:
    """Lets one process write. The lock ends with the process, even if it is killed.

    A forked child does not share it: it can neither write nor block other writers.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd: int | None = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise HistoryError(
                f"{directory}: another writer has this history open; open it for reading, or stop the other"
            ) from error
        _HELD.add(self)

    @property
    def is_held(self) -> bool:
        """Return whether this process may write."""
        return self._fd is not None

    def check(self) -> None:
        """Raise ``HistoryError`` in a forked child."""
        if not self.is_held:
            raise HistoryError(
                f"{self._directory}: opened for writing by another process; a forked child can only read"
            )

    def release(self) -> None:
        """Release the lock, even if another process still has a copy of the file descriptor."""
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._leave()

    def _leave(self) -> None:
        """Close the descriptor only; a process with a copy of it keeps the lock."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


_HELD: WeakSet[Lock] = WeakSet()


def is_locked(directory: Path) -> bool:
    """Return whether a writer holds the lock."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _leave_all() -> None:
    for lock in list(_HELD):
        lock._leave()


os.register_at_fork(after_in_child=_leave_all)


@contextmanager
def building_site(path: Path) -> Iterator[Path]:
    """A locked directory beside ``path`` to build in. What killed builders left there is removed first."""
    prefix = f".{path.name}.creating-"
    for abandoned in path.parent.glob(f"{prefix}*"):
        with suppress(OSError), _directory_locked(abandoned):
            shutil.rmtree(abandoned)
    site = path.parent / f"{prefix}{secrets.token_hex(8)}"
    site.mkdir()
    with _directory_locked(site):
        try:
            yield site
        except BaseException:
            shutil.rmtree(site, ignore_errors=True)
            raise


@contextmanager
def _directory_locked(directory: Path) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
