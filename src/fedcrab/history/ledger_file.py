"""A ledger's file, opened for reading: it may come from a stranger, and somebody may be writing to it."""

from __future__ import annotations

import os
import sqlite3
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from threading import RLock
from typing import Any
from weakref import finalize

from fedcrab.errors import DamagedError, HistoryError
from fedcrab.history.participants import Participants

STEPS = 1000  # of SQLite's machine between two looks at the allowance
# What lies with the machine, not with the file: its memory, its disk, permissions, who else is at work.
OUTSIDE = {
    *(sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL),
}
CANNOT_WRITE = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
TRIES = 5  # to copy a ledger while nobody writes to it
CLIENTS_ROOM = 2**26  # bytes of clients' columns that are held, the latest used; and of coordinates
NUMBERS_ROOM = 2**25


class Shelf:
    """What was read last, up to so many bytes: the rest is read again when it is asked for."""

    def __init__(self, room: int) -> None:
        self._room, self._taken = room, 0
        self._held = OrderedDict[Any, tuple[Any, int]]()

    def get(self, key: Any) -> Any:
        """What lies under this key, or None."""
        if key not in self._held:
            return None
        self._held.move_to_end(key)
        return self._held[key][0]

    def put(self, key: Any, value: Any, size: int) -> None:
        """Hold this, and let go of what was not asked for the longest."""
        if size > self._room or key in self._held:
            return
        self._held[key] = value, size
        self._taken += size
        while self._taken > self._room:
            _, (_, freed) = self._held.popitem(last=False)
            self._taken -= freed


class LedgerFile:
    """The file of a ledger, read a piece at a time; any thread may ask.

    A ``sealed`` file is one that nobody writes any more: it is read without a lock or a file beside it, over
    one connection. Else every piece has a connection of its own, so that no writer waits for this reader.
    """

    def __init__(self, path: Path, *, sealed: bool) -> None:
        self.path, self.sealed = path, sealed
        self.clients, self.numbers = Shelf(CLIENTS_ROOM), Shelf(NUMBERS_ROOM)
        self.lock = RLock()
        self._kept: tuple[int, sqlite3.Connection] | None = None
        self._used: sqlite3.Connection | None = None
        self._last: tuple[str, ...] = ()

    def shared(self, found: Participants) -> Participants:
        """The same, the ids those of the round read before where they are equal: most rounds are alike."""
        if found.clients == self._last:
            return replace(found, clients=self._last)
        self._last = found.clients
        return found

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """A connection with a fresh allowance, for this thread alone; inside such a block, the same one."""
        with self.lock, explained(self.path), ExitStack() as stack:
            outermost = self._used is None
            if self._used is None:
                self._used = self._own() if self.sealed else stack.enter_context(connected(self.path, False))
            _limit(self.path, self._used)
            try:
                yield self._used
            finally:
                self._used = None if outermost else self._used

    def _own(self) -> sqlite3.Connection:
        """The connection to a sealed file, which is kept; a forked child opens its own."""
        if self._kept is None or self._kept[0] != os.getpid():
            made = _connect(self.path, sealed=True)
            finalize(self, made.close)
            self._kept = os.getpid(), made
        return self._kept[1]


@contextmanager
def explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in OUTSIDE:
            raise HistoryError(
                f"{path}: not readable now ({error}); try again when the cause is gone"
            ) from error
        raise DamagedError(f"{path}: not readable as a ledger ({error})") from error
    except (OSError, UnicodeDecodeError) as error:  # also SQLite's own messages quote what they found
        raise DamagedError(f"{path}: not readable as a ledger ({error})") from error


@contextmanager
def connected(path: Path, sealed: bool) -> Iterator[sqlite3.Connection]:
    """A connection to the ledger, or to a copy of it where SQLite needs to write beside it and cannot.

    An open history is in WAL mode: its readers share a file. On a read-only file system, or without write
    permission, nobody can make that file.
    """
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(closing(_connect(path, sealed)))
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
        except sqlite3.OperationalError as error:
            if sealed or error.sqlite_errorcode & 0xFF not in CANNOT_WRITE:
                raise
            try:
                copied = _copy(path, Path(stack.enter_context(TemporaryDirectory(prefix="fedcrab-"))))
            except OSError:
                raise error from None
            connection = stack.enter_context(closing(_connect(copied, sealed)))
        yield connection


def _copy(path: Path, directory: Path) -> Path:
    """The ledger and its WAL as they are at one moment, in another directory."""
    sources = path, path.with_name(f"{path.name}-wal")
    for _ in range(TRIES):
        before = [_stamp(source) for source in sources]
        for source in sources:
            (directory / source.name).unlink(missing_ok=True)
            if source.exists():
                copyfile(source, directory / source.name)
        if before == [_stamp(source) for source in sources]:
            return directory / path.name
    raise HistoryError(f"{path}: written to all the time, and not readable without write permission")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _connect(path: Path, sealed: bool) -> sqlite3.Connection:
    """A connection that cannot write, and that a small file cannot make allocate much."""
    mode = "mode=ro&immutable=1" if sealed else "mode=ro"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=not sealed
    )
    try:
        _limit(path, connection)
        for pragma in ("query_only=ON", "trusted_schema=OFF", "cell_size_check=ON", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def _limit(path: Path, connection: sqlite3.Connection) -> None:
    """Let a connection give as much as the file holds, from here on."""
    try:
        pending = path.with_name(path.name + "-wal").stat().st_size
    except FileNotFoundError:  # none, or its writer has just closed the ledger
        pending = 0
    size = min(path.stat().st_size + pending, 2**31 - 1)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(size, 2**16))
    connection.text_factory = _ReadLimit(path, size).text
    connection.set_progress_handler(_ReadLimit(path, 8 * size).is_spent, STEPS)


class _ReadLimit:
    """A file gives what it holds. One whose pages point to each other in circles seems to hold far more."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._left = size + 2**17  # bytes of text, each read once; or steps of SQLite, below two a byte

    def text(self, raw: bytes) -> str:
        self._left -= len(raw)
        if self._left < 0:
            raise DamagedError(f"{self._path}: more text in it than its size allows")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise DamagedError(f"{self._path}: contains invalid UTF-8") from error

    def is_spent(self) -> bool:
        self._left -= STEPS
        return self._left < 0
