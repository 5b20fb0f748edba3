"""Reads the entries of a ledger in order. The file is not trusted: its tables must match ours exactly."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import merge
from pathlib import Path

from fedcrab.errors import DamagedError, FedcrabError
from fedcrab.history.ledger import APPLICATION
from fedcrab.history.ledger_file import LedgerFile
from fedcrab.history.ledger_rows import (
    Row,
    checked_hash,
    parse_charter,
    parse_round,
    parse_window,
    rejections,
    whole,
)
from fedcrab.history.migrate import format_of, schema
from fedcrab.history.records import ClosingRecord, Record, RoundRecord, Settings
from fedcrab.history.stored_participants import StoredParticipants, read_participants

NumberedRecord = tuple[
    int, Record | None, str
]  # an invalid entry is None, with the reason in place of the hash
COLUMNS = {  # of a round, without its coordinates
    1: "entry, round, loss, divergence, start, after, mean, updates, compared_with, sketched, hash",
    2: "began, ended",
    3: "notes, state_before, state_after",
    4: "round IN (SELECT round FROM participants) AS in_columns",
}


def read_entries(file: LedgerFile) -> Iterator[NumberedRecord]:
    """Yield the committed entries in order, each with its stored hash.

    The clients of a round are read on demand (:class:`StoredParticipants`).
    """
    with file.connection() as connection:
        connection.execute("BEGIN")
        try:
            _check_schema(file.path, connection)
            _check_coordinates(file.path, connection)
            for place, table in _places(connection):
                yield place, *load(connection, table, place, file)
            _check_orphans(file.path, connection)
        finally:
            connection.execute("ROLLBACK")


def read_rounds(path: Path, places: Iterable[int], charter: Settings) -> list[RoundRecord]:
    """Return the rounds at these positions of a ledger that is being written and was checked when opened."""
    found, file = [], LedgerFile(path, sealed=False)
    with file.connection() as connection:
        for place in places:
            entry, why = load(connection, "rounds", place, file)
            if not isinstance(entry, RoundRecord):
                raise DamagedError(f"{path}: {why}")
            found.append(held(connection, entry, charter, file))
    return found


def held(
    connection: sqlite3.Connection, entry: RoundRecord, charter: Settings, file: LedgerFile
) -> RoundRecord:
    """Return the round with its clients in memory."""
    return replace(entry, present=read_participants(connection, entry, charter, file))


def _check_schema(path: Path, connection: sqlite3.Connection) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    found = {row[0] for row in connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")}
    if application != APPLICATION:
        raise DamagedError(f"{path}: not a fedcrab ledger")
    number = format_of(connection)
    if found != schema(number):
        raise DamagedError(f"{path}: not a fedcrab ledger (its tables are not those of format {number})")


def _check_coordinates(path: Path, connection: sqlite3.Connection) -> None:
    """Raise unless the coordinates of all rounds fit into the file, so that no two share their bytes."""
    pages = "(SELECT page_count * page_size FROM pragma_page_count, pragma_page_size)"
    for table in ("rounds", "participants") if format_of(connection) >= 4 else ("rounds",):
        query = f"SELECT total(length(coordinates)) > {pages} FROM {table}"
        if connection.execute(query).fetchone()[0]:
            raise DamagedError(f"{path}: contains more coordinates than its size allows")


def _places(connection: sqlite3.Connection) -> Iterator[tuple[int, str]]:
    """Yield the position and table of every entry in order, without holding them in memory."""

    def places(table: str) -> Iterator[tuple[int, str]]:
        return ((row[0], table) for row in connection.execute(f"SELECT entry FROM {table} ORDER BY entry"))

    return merge(*map(places, ("charter", "rounds", "windows", "closing")))


def _check_orphans(path: Path, connection: sqlite3.Connection) -> None:
    """Raise if there are rows of a missing round, or duplicate rows: no hash covers them."""
    tables = ("clients", "rejections", *(("participants",) if format_of(connection) >= 4 else ()))
    for table in tables:
        query = f"SELECT round FROM {table} WHERE round NOT IN (SELECT round FROM rounds) LIMIT 1"
        if row := connection.execute(query).fetchone():
            raise DamagedError(
                f"{path}: table {table} has rows for round {row[0]!r}, which was never recorded"
            )
    if "participants" not in tables:
        return
    twice = (
        "SELECT round FROM participants WHERE round IN (SELECT round FROM clients)"
        " OR round IN (SELECT round FROM rounds WHERE length(coordinates) > 0) LIMIT 1"
    )
    if row := connection.execute(twice).fetchone():
        raise DamagedError(f"{path}: the clients of round {row[0]!r} are stored twice")


def load(
    connection: sqlite3.Connection, table: str, place: int, file: LedgerFile
) -> tuple[Record | None, str]:
    """Return the entry at a position of this table with its hash, or None with the reason."""
    number = format_of(connection)
    columns = ", ".join(text for since, text in COLUMNS.items() if since <= number)
    query = f"SELECT {columns if table == 'rounds' else '*'} FROM {table} WHERE entry = ?"
    cursor = connection.execute(query, (place,))
    values = cursor.fetchone()
    if values is None:
        return None, f"{table} at entry {place}: the row is listed but cannot be found"
    row = {"in_columns": 0, **dict(zip((name for name, *_ in cursor.description), values, strict=True))}
    parse: dict[str, Callable[[], Record]] = {
        "charter": lambda: parse_charter(row),
        "rounds": lambda: _round(row, connection, file),
        "windows": lambda: parse_window(row),
        "closing": lambda: ClosingRecord(whole(row["rounds"])),
    }
    try:
        return parse[table](), checked_hash(row["hash"])
    except (FedcrabError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        return None, f"{table[:-1] if table != 'charter' else table} at entry {place}: {error}"


def _round(row: Row, connection: sqlite3.Connection, file: LedgerFile) -> RoundRecord:
    return parse_round(row, StoredParticipants(file), rejections(connection, whole(row["round"])))
