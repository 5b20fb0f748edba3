"""Opens a ledger file for reading. The file is not trusted, and another process may be writing to it."""

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

STEPS = 1000  # of SQLite's virtual machine between two checks of the read limit
# SQLite errors that come from the machine, not from the file: memory, disk, permissions, other processes.
OUTSIDE = {
    *(sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL),
}
CANNOT_WRITE = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
TRIES = 5  # to copy a ledger at a moment when nobody writes to it
CLIENTS_ROOM = 2**26  # bytes of clients' columns in the cache, and as many of coordinates
NUMBERS_ROOM = 2**25


class Shelf:
    """A cache of limited size; what does not fit is read again when needed."""

    def __init__(self, room: int) -> None:
        self._room, self._taken = room, 0
        self._held = OrderedDict[Any, tuple[Any, int]]()

    def get(self, key: Any) -> Any:
        """Return the value of this key, or None."""
        if key not in self._held:
            return None
        self._held.move_to_end(key)
        return self._held[key][0]

    def put(self, key: Any, value: Any, size: int) -> None:
        """Store a value, and drop the least recently used ones if there is no room."""
        if size > self._room or key in self._held:
            return
        self._held[key] = value, size
        self._taken += size
        while self._taken > self._room:
            _, (_, freed) = self._held.popitem(last=False)
            self._taken -= freed


class LedgerFile:
    """A ledger file, read in pieces; any thread may use it.

    A ``sealed`` file is never written again: it is read over one connection, without locks. Otherwise each
    piece has its own connection, so that no writer waits for this reader.
    """

    def __init__(self, path: Path, *, sealed: bool) -> None:
        self.path, self.sealed = path, sealed
        self.clients, self.numbers = Shelf(CLIENTS_ROOM), Shelf(NUMBERS_ROOM)
        self.lock = RLock()
        self._kept: tuple[int, sqlite3.Connection] | None = None
        self._used: sqlite3.Connection | None = None
        self._last: tuple[str, ...] = ()

    def shared(self, found: Participants) -> Participants:
        """Return the participants with the ids of the previous round if they are equal; saves memory."""
        if found.clients == self._last:
            return replace(found, clients=self._last)
        self._last = found.clients
        return found

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """A connection with a new read limit, for this thread only; nested blocks share it."""
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
        """Return the connection to a sealed file, which stays open; a forked child opens its own."""
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
                f"{path}: not readable now ({error}); try again when the cause is fixed"
            ) from error
        raise DamagedError(f"{path}: not readable as a ledger ({error})") from error
    except (OSError, UnicodeDecodeError) as error:  # SQLite's messages may quote invalid text
        raise DamagedError(f"{path}: not readable as a ledger ({error})") from error


@contextmanager
def connected(path: Path, sealed: bool) -> Iterator[sqlite3.Connection]:
    """A connection to the ledger, or to a copy if SQLite needs to write a file beside it and cannot.

    An open history is in WAL mode, whose readers share a file. On a read-only file system, or without write
    permission, that file cannot be created.
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
    """Copy the ledger and its WAL, as they are at one moment, to another directory."""
    sources = path, path.with_name(f"{path.name}-wal")
    for _ in range(TRIES):
        before = [_stamp(source) for source in sources]
        for source in sources:
            (directory / source.name).unlink(missing_ok=True)
            if source.exists():
                copyfile(source, directory / source.name)
        if before == [_stamp(source) for source in sources]:
            return directory / path.name
    raise HistoryError(f"{path}: is written all the time; reading it needs write permission")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _connect(path: Path, sealed: bool) -> sqlite3.Connection:
    """Return a read-only connection that limits how much memory a small file can use."""
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
    """From now on, limit what a connection may read to the size of the file."""
    try:
        pending = path.with_name(path.name + "-wal").stat().st_size
    except FileNotFoundError:  # there is none, or its writer has just closed the ledger
        pending = 0
    size = min(path.stat().st_size + pending, 2**31 - 1)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(size, 2**16))
    connection.text_factory = _ReadLimit(path, size).text
    connection.set_progress_handler(_ReadLimit(path, 8 * size).is_spent, STEPS)


class _ReadLimit:
    """Limits reads to the size of the file. Pages that point in circles would seem to contain far more."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._left = size + 2**17  # bytes of text, each read once; or steps of SQLite, less than two per byte

    def text(self, raw: bytes) -> str:
        self._left -= len(raw)
        if self._left < 0:
            raise DamagedError(f"{self._path}: contains more text than its size allows")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise DamagedError(f"{self._path}: contains invalid UTF-8") from error

    def is_spent(self) -> bool:
        self._left -= STEPS
        return self._left < 0
