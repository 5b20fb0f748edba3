"""The rows of a ledger as entries: every value is of its kind and within its bounds, or it is refused.

Reading a ledger that may come from a stranger: our tables to the letter, every value checked.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from heapq import merge
from math import prod
from operator import lt
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedcrab.admission import LONGEST_TEXT, MOST_EXAMPLES
from fedcrab.errors import DamagedError, FedcrabError, HistoryError
from fedcrab.history.gram import Coordinates
from fedcrab.history.ledger import APPLICATION
from fedcrab.history.migrate import CHANGES, FORMAT, format_of, schema
from fedcrab.history.records import (
    ClosingRecord,
    Record,
    RoundRecord,
    Settings,
    WindowRecord,
    instant_text,
    number,
)
from fedcrab.history.snapshots import is_hash
from fedcrab.types import Rejection

Row = Mapping[str, Any]  # a column that the row's format does not have yet is absent
LONGEST_JSON = 2**20  # characters
MOST_NUMBERS = 2**48  # in a tensor
LONGEST = 1e60  # a coordinate: above what float32 vectors can give, and its square is still a number


def parse_charter(row: Row) -> Settings:
    table = _json(row["settings"])
    if whole(table["format"]) not in CHANGES:
        raise DamagedError(
            f"format {table['format']!r} is not known here; this program reads formats 1 to {FORMAT}"
        )
    charter = Settings.from_table(table)
    for f in charter.layout.fields:
        _text(f.name)
        if prod(max(whole(n), 1) for n in f.shape) > MOST_NUMBERS:
            raise DamagedError(f"a tensor of shape {str(f.shape)[:40]} is beyond any machine")
        if not isinstance(f.trained, bool) or not isinstance(f.integer, bool):
            raise DamagedError(f"tensor {f.name[:40]!r} must be said to be trained or not, integer or not")
    if not whole(charter.gram_limit) or not whole(charter.sketch_size):
        raise DamagedError("gram_limit and sketch_size must be 1 or more")
    whole(charter.seed), _text(charter.aggregation), checked_hash(charter.initial_model)
    if not isinstance(charter.notes, str):  # any text: bounded by this JSON, and never shown as it is
        raise DamagedError(f"notes are a text, and {str(charter.notes)[:40]!r} stands there")
    return charter


def parse_window(row: Row) -> WindowRecord:
    chosen = tuple(whole(t) for t in _json(row["chosen"]))
    index, first, last = (whole(row[name]) for name in ("number", "first", "last"))
    return WindowRecord(index, first, last, chosen, number(_real_or_null(row["reference"])))


def parse_round(row: Row, connection: sqlite3.Connection) -> RoundRecord:
    index, updates = whole(row["round"]), row["updates"]
    clients, digests, columns = _clients(connection, index)
    references = tuple(whole(t) for t in _json(row["compared_with"]))
    shape = len(clients) + len(references), bool(whole(row["sketched"]))
    return RoundRecord(
        index=index,
        loss=number(_real_or_null(row["loss"])),
        divergence=number(_real_or_null(row["divergence"])),
        start=checked_hash(row["start"]),
        after=checked_hash(row["after"]),
        mean=checked_hash(row["mean"]),
        updates=None if updates is None else checked_hash(updates),
        clients=clients,
        examples=columns[0],
        norms=columns[1],
        cosines=columns[2],
        selected=columns[3].astype(bool),
        digests=digests,
        references=references,
        coordinates=_coordinates(row["coordinates"], *shape),
        rejected=_rejected(connection, index),
        began=_instant(row.get("began")),
        ended=_instant(row.get("ended")),
        notes=_notes(row.get("notes")),
        state_before=_hash_or_null(row.get("state_before")),
        state_after=_hash_or_null(row.get("state_after")),
    )


def _clients(
    connection: sqlite3.Connection, index: int
) -> tuple[tuple[str, ...], tuple[str, ...], NDArray[np.float64]]:
    """The ids, the hashes and the numbers (a row per column of the table) of a round's clients."""
    query = (
        "SELECT client, examples, norm, cosine, selected, sha256 FROM clients WHERE round = ? ORDER BY client"
    )
    rows = connection.execute(query, (index,)).fetchall()
    if not rows:
        return (), (), np.empty((4, 0))
    ids, *columns, digests = zip(*rows, strict=True)
    if not _are_clients(ids, columns, digests):
        _refuse_clients(rows)
    return ids, digests, np.array(columns, np.float64)


def _are_clients(ids: tuple[Any, ...], columns: Sequence[tuple[Any, ...]], digests: tuple[Any, ...]) -> bool:
    """Whether every value of a round's clients is of its kind and within its bounds: all of them at once."""
    if any(set(map(type, texts)) != {str} for texts in (ids, digests)):
        return False
    if not all(set(map(type, column)) <= {int, float} for column in columns):
        return False
    try:
        numbers = np.array(columns, np.float64)
    except OverflowError:
        return False
    return (
        all(map(str.isprintable, ids))
        and max(map(len, ids)) <= LONGEST_TEXT
        and all(map(lt, ids, ids[1:]))
        and all(map(is_hash, digests))
        and bool(np.isfinite(numbers).all())
        and bool((numbers[0] > 0).all() and (numbers[0] <= MOST_EXAMPLES).all())
    )


def _refuse_clients(rows: Sequence[tuple[Any, ...]]) -> NoReturn:
    """Say which client of a round is not as it must be."""
    before = ""
    for client, *values, digest in rows:
        if _text(client) <= before:
            raise DamagedError(f"client {client[:40]!r} does not stand in the order of the ids")
        before = client
        checked_hash(digest)
        examples, *_ = map(_finite, values)
        if not 0 < examples <= MOST_EXAMPLES:
            raise DamagedError(f"client {client[:40]!r} cannot have {examples:g} examples")
    raise DamagedError("the clients of a round are not as they must be")


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


def whole(value: object) -> int:
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


def _instant(value: object) -> datetime | None:
    """A time as :func:`instant_text` writes it, to the letter."""
    if value is None:
        return None
    when = datetime.fromisoformat(_text(value)).astimezone(UTC)
    if instant_text(when) != value:
        raise DamagedError(f"a time (UTC) is expected where {str(value)[:40]!r} stands")
    return when


def _notes(value: object) -> str | None:
    """Any text, bounded, and never shown as it is."""
    if value is not None and (not isinstance(value, str) or not 0 < len(value) <= LONGEST_JSON):
        raise DamagedError(f"notes are a text of 1 to {LONGEST_JSON} characters")
    return value


def _hash_or_null(value: object) -> str | None:
    return None if value is None else checked_hash(value)


def checked_hash(value: object) -> str:
    if not is_hash(value):
        raise DamagedError(f"a sha256 is expected where {str(value)[:40]!r} stands")
    return str(value)


NumberedRecord = tuple[
    int, Record | None, str
]  # an entry that makes no sense is None, with the reason for a hash
STEPS = 1000  # of SQLite's machine between two looks at the allowance
# What lies with the machine, not with the file: its memory, its disk, permissions, who else is at work.
OUTSIDE = {
    *(sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL),
}
CANNOT_WRITE = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
TRIES = 5  # to copy a ledger while nobody writes to it


def read_entries(path: Path, *, sealed: bool) -> Iterator[NumberedRecord]:
    """The committed entries in their order, each with the hash that stands beside it.

    A ``sealed`` file is one that nobody writes any more: it is read without a lock or a file beside it.
    """
    with _explained(path), _connected(path, sealed) as connection:
        connection.execute("BEGIN")
        _check_schema(path, connection)
        _check_coordinates(path, connection)
        for place, table in _places(connection):
            yield place, *_load(connection, table, place)
        _check_orphans(path, connection)


def read_rounds(path: Path, places: Iterable[int]) -> list[RoundRecord]:
    """The rounds at these places of a ledger that is being written, and was checked when it was opened."""
    found = []
    with _explained(path), _connected(path, sealed=False) as connection:
        for place in places:
            entry, why = _load(connection, "rounds", place)
            if not isinstance(entry, RoundRecord):
                raise DamagedError(f"{path}: {why}")
            found.append(entry)
    return found


@contextmanager
def _explained(path: Path) -> Iterator[None]:
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
def _connected(path: Path, sealed: bool) -> Iterator[sqlite3.Connection]:
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
    try:
        pending = path.with_name(path.name + "-wal").stat().st_size
    except FileNotFoundError:  # none, or its writer has just closed the ledger
        pending = 0
    mode = "mode=ro&immutable=1" if sealed else "mode=ro"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None)
    try:
        size = min(path.stat().st_size + pending, 2**31 - 1)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(size, 2**16))
        connection.text_factory = _ReadLimit(path, size).text
        connection.set_progress_handler(_ReadLimit(path, 8 * size).is_spent, STEPS)
        for pragma in ("query_only=ON", "trusted_schema=OFF", "cell_size_check=ON", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


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


def _check_schema(path: Path, connection: sqlite3.Connection) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    found = {row[0] for row in connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")}
    if application != APPLICATION:
        raise DamagedError(f"{path}: not a fedcrab ledger")
    number = format_of(connection)
    if found != schema(number):
        raise DamagedError(f"{path}: not a fedcrab ledger (its tables are not those of format {number})")


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


def _load(connection: sqlite3.Connection, table: str, place: int) -> tuple[Record | None, str]:
    cursor = connection.execute(f"SELECT * FROM {table} WHERE entry = ?", (place,))
    values = cursor.fetchone()
    if values is None:
        return None, f"{table} at entry {place}: the row is listed and cannot be found"
    row = dict(zip((name for name, *_ in cursor.description), values, strict=True))
    parse: dict[str, Callable[[], Record]] = {
        "charter": lambda: parse_charter(row),
        "rounds": lambda: parse_round(row, connection),
        "windows": lambda: parse_window(row),
        "closing": lambda: ClosingRecord(whole(row["rounds"])),
    }
    try:
        return parse[table](), checked_hash(row["hash"])
    except (FedcrabError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        return None, f"{table[:-1] if table != 'charter' else table} at entry {place}: {error}"
