"""The formats of a ledger, and how each is migrated to the next.

A new ledger is created in format 1 and brought to the newest format by the same statements that migrate an
old one, so both have exactly the same tables. The format number is SQLite's ``user_version`` (0 in format 1).
A closed history keeps its format forever; an open one is migrated when it is resumed.

**To add a column:** add a format to ``CHANGES`` (columns can only be added; older rows have NULL), a field to
the entry (``facts`` includes it only if it has a value), a line to ``ledger_rows`` that reads it, and a line
to ``ledger`` that writes it. A row without the new value has the same hash as before, so no chain changes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from functools import cache

from fedcrab.errors import HistoryError

FIRST = (
    "CREATE TABLE charter (entry INTEGER PRIMARY KEY, settings TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE rounds (entry INTEGER PRIMARY KEY, round INTEGER NOT NULL, loss REAL, divergence REAL, "
    "start TEXT NOT NULL, after TEXT NOT NULL, mean TEXT NOT NULL, updates TEXT, "
    "compared_with TEXT NOT NULL, sketched INTEGER NOT NULL, coordinates BLOB NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE clients (round INTEGER NOT NULL, client TEXT NOT NULL, examples REAL NOT NULL, "
    "norm REAL NOT NULL, cosine REAL NOT NULL, selected INTEGER NOT NULL, sha256 TEXT NOT NULL, "
    "PRIMARY KEY (round, client)) WITHOUT ROWID",
    "CREATE TABLE rejections (round INTEGER NOT NULL, place INTEGER NOT NULL, client TEXT NOT NULL, "
    "reason TEXT NOT NULL, PRIMARY KEY (round, place)) WITHOUT ROWID",
    "CREATE TABLE windows (entry INTEGER PRIMARY KEY, number INTEGER NOT NULL, first INTEGER NOT NULL, "
    "last INTEGER NOT NULL, chosen TEXT NOT NULL, reference REAL, hash TEXT NOT NULL)",
    "CREATE TABLE closing (entry INTEGER PRIMARY KEY, rounds INTEGER NOT NULL, hash TEXT NOT NULL)",
)
CHANGES: Mapping[int, tuple[str, ...]] = {
    1: FIRST,
    2: (  # when a round began and ended, UTC
        "ALTER TABLE rounds ADD COLUMN began TEXT",
        "ALTER TABLE rounds ADD COLUMN ended TEXT",
    ),
    3: (  # free text of the server, and its own state before and after the round
        "ALTER TABLE rounds ADD COLUMN notes TEXT",
        "ALTER TABLE rounds ADD COLUMN state_before TEXT",
        "ALTER TABLE rounds ADD COLUMN state_after TEXT",
    ),
    4: (  # the clients of a round as columns, in their own table; older rounds keep one row per client
        "CREATE TABLE participants (round INTEGER PRIMARY KEY, ids TEXT NOT NULL, numbers BLOB NOT NULL, "
        "digits INTEGER NOT NULL, coordinates_sha256 TEXT NOT NULL, coordinates BLOB NOT NULL)",
    ),
}
FORMAT = max(CHANGES)


def format_of(connection: sqlite3.Connection) -> int:
    """Return the format of a ledger's tables; raise ``DamagedError`` if it is not supported."""
    number: int = connection.execute("PRAGMA user_version").fetchone()[0] or 1
    if number not in CHANGES:
        raise HistoryError(
            f"the ledger has format {number}; this version reads formats 1 to {FORMAT}; use a newer fedcrab"
        )
    return number


def migrate(connection: sqlite3.Connection, *, found: int) -> None:
    """Bring tables of format ``found`` (0: no tables) to the newest format, in one transaction."""
    if found == FORMAT:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        _change(connection, found, FORMAT)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _change(connection: sqlite3.Connection, found: int, wanted: int) -> None:
    for number in range(found + 1, wanted + 1):
        for statement in CHANGES[number]:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version={wanted if wanted > 1 else 0}")


@cache
def schema(number: int) -> frozenset[str]:
    """Return the statements with which SQLite describes the tables of a format."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _change(connection, 0, number)
        rows = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")
        return frozenset(row[0] for row in rows)
