"""Reading a ledger that may come from a stranger: our tables to the letter, every value checked."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from heapq import merge
from pathlib import Path

from fedcrab.errors import DamagedError, FedcrabError, HistoryError
from fedcrab.history.entries import FORMAT, Closing, Entry
from fedcrab.history.ledger import APPLICATION, SCHEMA
from fedcrab.history.parsing import checked_hash, parse_charter, parse_round, parse_window, whole

Placed = tuple[int, Entry | None, str]  # an entry that makes no sense is None, with the reason for a hash
STEPS = 1000  # of SQLite's machine between two looks at the allowance
# What lies with the machine, not with the file: its memory, its disk, permissions, who else is at work.
OUTSIDE = {
    *(sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL),
}


def read_entries(path: Path, *, sealed: bool) -> Iterator[Placed]:
    """The committed entries in their order, each with the hash that stands beside it.

    A ``sealed`` file is one that nobody writes any more: it is read without a lock or a file beside it.
    """
    try:
        with closing(_connect(path, sealed)) as connection:
            connection.execute("BEGIN")
            _check_schema(path, connection)
            _check_coordinates(path, connection)
            for place, table in _places(connection):
                yield place, *_load(connection, table, place)
            _check_orphans(path, connection)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in OUTSIDE:
            raise HistoryError(
                f"{path}: not readable now ({error}); try again when the cause is gone"
            ) from error
        raise DamagedError(f"{path}: not readable as a ledger ({error})") from error
    except (OSError, UnicodeDecodeError) as error:  # also SQLite's own messages quote what they found
        raise DamagedError(f"{path}: not readable as a ledger ({error})") from error


def _connect(path: Path, sealed: bool) -> sqlite3.Connection:
    """A connection that cannot write, and that a small file cannot make allocate much."""
    wal = path.with_name(path.name + "-wal")
    pending = wal.stat().st_size if wal.exists() else 0
    mode = "mode=ro&immutable=1" if sealed else "mode=ro"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None)
    try:
        size = min(path.stat().st_size + pending, 2**31 - 1)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(size, 2**16))
        connection.text_factory = _Allowance(path, size).text
        connection.set_progress_handler(_Allowance(path, 8 * size).is_spent, STEPS)
        for pragma in ("query_only=ON", "trusted_schema=OFF", "cell_size_check=ON", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


class _Allowance:
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
            raise DamagedError(f"{self._path}: has text that is no text") from error

    def is_spent(self) -> bool:
        self._left -= STEPS
        return self._left < 0


def _check_schema(path: Path, connection: sqlite3.Connection) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    found = {row[0] for row in connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")}
    if application != APPLICATION or found != set(SCHEMA):
        raise DamagedError(f"{path}: not a fedcrab ledger (its tables are not those of format {FORMAT})")


def _check_coordinates(path: Path, connection: sqlite3.Connection) -> None:
    """The coordinates of all rounds fit into the file: no two share their bytes."""
    pages = "(SELECT page_count * page_size FROM pragma_page_count, pragma_page_size)"
    query = f"SELECT total(length(coordinates)) > {pages} FROM rounds"
    if connection.execute(query).fetchone()[0]:
        raise DamagedError(f"{path}: more coordinates in it than its size allows")


def _places(connection: sqlite3.Connection) -> Iterator[tuple[int, str]]:
    """Every entry's place and table, in the order of the places, none held before it is needed."""

    def places(table: str) -> Iterator[tuple[int, str]]:
        return ((row[0], table) for row in connection.execute(f"SELECT entry FROM {table} ORDER BY entry"))

    return merge(*map(places, ("charter", "rounds", "windows", "closing")))


def _check_orphans(path: Path, connection: sqlite3.Connection) -> None:
    """Rows of a round that is not there are covered by no hash."""
    for table in ("clients", "rejections"):
        query = f"SELECT round FROM {table} WHERE round NOT IN (SELECT round FROM rounds) LIMIT 1"
        if row := connection.execute(query).fetchone():
            raise DamagedError(
                f"{path}: table {table} has rows for round {row[0]!r}, which was never recorded"
            )


def _load(connection: sqlite3.Connection, table: str, place: int) -> tuple[Entry | None, str]:
    row = connection.execute(f"SELECT * FROM {table} WHERE entry = ?", (place,)).fetchone()
    parse: dict[str, Callable[[], Entry]] = {
        "charter": lambda: parse_charter(row),
        "rounds": lambda: parse_round(row, connection),
        "windows": lambda: parse_window(row),
        "closing": lambda: Closing(whole(row[1])),
    }
    try:
        return parse[table](), checked_hash(row[-1])
    except (FedcrabError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        return None, f"{table[:-1] if table != 'charter' else table} at entry {place}: {error}"
