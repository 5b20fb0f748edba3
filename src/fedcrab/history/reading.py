"""Reading a ledger that may come from a stranger: our tables to the letter, every value checked."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from heapq import merge
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.admission import LONGEST_TEXT, MOST_EXAMPLES
from fedcrab.errors import DamagedError, FedcrabError, HistoryError
from fedcrab.geometry import Coordinates
from fedcrab.history.entries import FORMAT, Charter, Closing, Entry, RoundEntry, WindowEntry, number
from fedcrab.history.ledger import APPLICATION, SCHEMA
from fedcrab.history.snapshots import is_hash
from fedcrab.types import Rejection

Row = tuple[Any, ...]
Placed = tuple[int, Entry | None, str]  # an entry that makes no sense is None, with the reason for a hash
STEPS = 1000  # of SQLite's machine between two looks at the allowance
LONGEST_JSON = 2**20  # characters
MOST_NUMBERS = 2**48  # in a tensor
LONGEST = 1e60  # a coordinate: above what float32 vectors can give, and its square is still a number
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
    table = _json(row[1])
    if table["format"] != FORMAT:
        raise DamagedError(
            f"format {table['format']!r} is not known here; this program reads format {FORMAT}"
        )
    charter = Charter.from_table(table)
    for f in charter.layout.fields:
        _text(f.name)
        if prod(max(_whole(n), 1) for n in f.shape) > MOST_NUMBERS:
            raise DamagedError(f"a tensor of shape {str(f.shape)[:40]} is beyond any machine")
        if not isinstance(f.trained, bool) or not isinstance(f.integer, bool):
            raise DamagedError(f"tensor {f.name[:40]!r} must be said to be trained or not, integer or not")
    if not _whole(charter.gram_limit) or not _whole(charter.sketch_size):
        raise DamagedError("gram_limit and sketch_size must be 1 or more")
    _whole(charter.seed), _text(charter.aggregation), _hash(charter.initial_model)
    return charter


def _window(row: Row) -> WindowEntry:
    chosen = tuple(_whole(t) for t in _json(row[4]))
    return WindowEntry(_whole(row[1]), _whole(row[2]), _whole(row[3]), chosen, number(_real_or_null(row[5])))


def _round(row: Row, connection: sqlite3.Connection) -> RoundEntry:
    _, index, loss, divergence, start, after, mean, updates, compared_with, sketched, blob, _ = row
    clients, digests, columns = _clients(connection, _whole(index))
    references = tuple(_whole(t) for t in _json(compared_with))
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
    ids: list[str] = []
    digests, numbers = [], []
    for client, *values, digest in connection.execute(query, (index,)):
        if ids and client <= ids[-1]:
            raise DamagedError(f"client {client[:40]!r} does not stand in the order of the ids")
        ids.append(_text(client))
        digests.append(_hash(digest))
        numbers.append([_finite(value) for value in values])
        if not 0 < values[0] <= MOST_EXAMPLES:
            raise DamagedError(f"client {client[:40]!r} cannot have {values[0]:g} examples")
    return tuple(ids), tuple(digests), np.array(numbers, np.float64).reshape(-1, 4).T.copy()


def _rejected(connection: sqlite3.Connection, index: int) -> tuple[Rejection, ...]:
    query = "SELECT place, client, reason FROM rejections WHERE round = ? ORDER BY place"
    rejected: list[Rejection] = []
    for place, client, reason in connection.execute(query, (index,)):
        if place != len(rejected):
            raise DamagedError(f"rejection {place!r} stands where rejection {len(rejected)} belongs")
        rejected.append(Rejection(_text(client), _text(reason)))
    return tuple(rejected)


def _coordinates(blob: object, points: int, sketched: bool) -> Coordinates:
    if not isinstance(blob, bytes) or len(blob) % 8:
        raise DamagedError("the coordinates are not a row of numbers")
    numbers = np.frombuffer(blob, "<f8")
    fits = points and len(numbers) % points == 0 if sketched else len(numbers) == points * (points + 1) // 2
    if not fits or not (np.abs(numbers) <= LONGEST).all():
        raise DamagedError(f"{len(numbers)} coordinates do not describe {points} points")
    return Coordinates(points, sketched, numbers)


def _json(value: object) -> Any:
    """What a text of ours says; a text that is long would become far longer."""
    return json.loads(_text(value, longest=LONGEST_JSON))


def _text(value: object, *, longest: int = LONGEST_TEXT) -> str:
    if not isinstance(value, str) or len(value) > longest or not value.isprintable():
        what = ascii(value[:30] if isinstance(value, str | bytes) else value)[:40]
        raise DamagedError(
            f"a printable text of at most {longest} characters is expected where {what} stands"
        )
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
