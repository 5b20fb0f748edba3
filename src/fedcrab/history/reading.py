"""Reading a ledger that may come from a stranger: our tables to the letter, every value checked."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import DamagedError, FedcrabError, HistoryError
from fedcrab.geometry import Coordinates
from fedcrab.history.entries import FORMAT, Charter, Closing, Entry, RoundEntry, WindowEntry, number
from fedcrab.history.ledger import APPLICATION, SCHEMA
from fedcrab.history.snapshots import is_hash
from fedcrab.types import Rejection

Row = tuple[Any, ...]
Placed = tuple[int, Entry | None, str]  # an entry that makes no sense is None, with the reason for a hash
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
            for place, table in _places(connection):
                yield place, *_load(connection, table, place)
            _check_orphans(path, connection)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in OUTSIDE:
            raise HistoryError(
                f"{path}: not readable now ({error}); try again when the cause is gone"
            ) from error
        raise DamagedError(f"{path}: not readable as a ledger ({error})") from error
    except OSError as error:
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
        for pragma in ("query_only=ON", "trusted_schema=OFF", "cell_size_check=ON"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_schema(path: Path, connection: sqlite3.Connection) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    found = {row[0] for row in connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")}
    if application != APPLICATION or found != set(SCHEMA):
        raise DamagedError(f"{path}: not a fedcrab ledger (its tables are not those of format {FORMAT})")


def _places(connection: sqlite3.Connection) -> list[tuple[int, str]]:
    tables = ("charter", "rounds", "windows", "closing")
    return sorted(
        (row[0], table) for table in tables for row in connection.execute(f"SELECT entry FROM {table}")
    )


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
        "charter": lambda: _charter(row),
        "rounds": lambda: _round(row, connection),
        "windows": lambda: _window(row),
        "closing": lambda: Closing(_whole(row[1])),
    }
    try:
        return parse[table](), _hash(row[-1])
    except (FedcrabError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        return None, f"{table[:-1] if table != 'charter' else table} at entry {place}: {error}"


def _charter(row: Row) -> Charter:
    table = json.loads(_text(row[1]))
    if table["format"] != FORMAT:
        raise DamagedError(
            f"format {table['format']!r} is not known here; this program reads format {FORMAT}"
        )
    charter = Charter.from_table(table)
    for f in charter.layout.fields:
        _text(f.name), [_whole(n) for n in f.shape]
    for value in (charter.gram_limit, charter.sketch_size, charter.seed):
        _whole(value)
    _text(charter.aggregation), _hash(charter.initial_model)
    return charter


def _window(row: Row) -> WindowEntry:
    chosen = tuple(_whole(t) for t in json.loads(_text(row[4])))
    return WindowEntry(_whole(row[1]), _whole(row[2]), _whole(row[3]), chosen, number(_real_or_null(row[5])))


def _round(row: Row, connection: sqlite3.Connection) -> RoundEntry:
    _, index, loss, divergence, start, after, mean, updates, compared_with, sketched, blob, _ = row
    clients, digests, columns = _clients(connection, _whole(index))
    references = tuple(_whole(t) for t in json.loads(_text(compared_with)))
    return RoundEntry(
        index=index,
        loss=number(_real_or_null(loss)),
        divergence=number(_real_or_null(divergence)),
        start=_hash(start),
        after=_hash(after),
        mean=None if mean is None else _hash(mean),
        updates=None if updates is None else _hash(updates),
        clients=clients,
        examples=columns[0],
        norms=columns[1],
        cosines=columns[2],
        selected=columns[3].astype(bool),
        digests=digests,
        references=references,
        coordinates=_coordinates(blob, len(clients) + len(references), bool(_whole(sketched))),
        rejected=_rejected(connection, index),
    )


def _clients(
    connection: sqlite3.Connection, index: int
) -> tuple[tuple[str, ...], tuple[str, ...], NDArray[np.float64]]:
    query = (
        "SELECT client, examples, norm, cosine, selected, sha256 FROM clients WHERE round = ? ORDER BY client"
    )
    ids, digests, numbers = [], [], []
    for client, *values, digest in connection.execute(query, (index,)):
        ids.append(_text(client))
        digests.append(_hash(digest))
        numbers.append([_finite(value) for value in values])
    return tuple(ids), tuple(digests), np.array(numbers, np.float64).reshape(-1, 4).T.copy()


def _rejected(connection: sqlite3.Connection, index: int) -> tuple[Rejection, ...]:
    query = "SELECT client, reason FROM rejections WHERE round = ? ORDER BY place"
    return tuple(Rejection(_text(c), _text(r)) for c, r in connection.execute(query, (index,)))


def _coordinates(blob: object, points: int, sketched: bool) -> Coordinates:
    if not isinstance(blob, bytes) or len(blob) % 8:
        raise DamagedError("the coordinates are not a row of numbers")
    numbers = np.frombuffer(blob, "<f8")
    fits = points and len(numbers) % points == 0 if sketched else len(numbers) == points * (points + 1) // 2
    if not fits or not np.isfinite(numbers).all():
        raise DamagedError(f"{len(numbers)} coordinates do not describe {points} points")
    return Coordinates(points, sketched, numbers)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise DamagedError(f"a text is expected where {str(value)[:40]!r} stands")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise DamagedError(f"a whole number is expected where {str(value)[:40]!r} stands")
    return value


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or not np.isfinite(value):
        raise DamagedError(f"a finite number is expected where {str(value)[:40]!r} stands")
    return float(value)


def _real_or_null(value: object) -> float | None:
    if value is not None and not isinstance(value, float):
        raise DamagedError(f"a number is expected where {str(value)[:40]!r} stands")
    return value


def _hash(value: object) -> str:
    if not is_hash(value):
        raise DamagedError(f"a sha256 is expected where {str(value)[:40]!r} stands")
    return str(value)
