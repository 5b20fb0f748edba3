"""The ledger: an SQLite file with one row per round, and one row with the columns of the round's clients.

It uses WAL mode with synchronous=FULL, so that what is committed is on the disk. Entries are only added.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from logging import getLogger
from pathlib import Path
from time import monotonic, sleep

from fedcrab.errors import HistoryError
from fedcrab.history.migrate import format_of, migrate
from fedcrab.history.number_planes import encode
from fedcrab.history.participants import pack_ids, pack_numbers
from fedcrab.history.records import ClosingRecord, Record, RoundRecord, WindowRecord, instant_text

APPLICATION = 0x46454443  # "FEDC", in the header of the file
PATIENCE = 10.0  # seconds that SQLite waits for another connection
FOR_READERS = 600.0  # seconds to wait for readers before the WAL is moved into the main file


class Ledger:
    """The writer's connection to the ledger file. The caller must hold the history's lock.

    Any thread may use it, one at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._explained():
            self._connection = sqlite3.connect(
                path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "trusted_schema=OFF"):
            self._connection.execute(f"PRAGMA {pragma}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise HistoryError(
                f"{self.path}: {error}; nothing that was acknowledged is lost, "
                "try again when the cause is gone"
            ) from error

    def lay_out(self) -> None:
        """Create the tables of a new ledger."""
        with self._explained():
            self._connection.execute(f"PRAGMA application_id={APPLICATION}")
            migrate(self._connection, found=0)

    def migrate(self) -> None:
        """Bring an older ledger to the newest format: columns are added, existing values do not change."""
        with self._explained():
            migrate(self._connection, found=format_of(self._connection))

    def append(self, entries: Iterable[tuple[int, Record, str]]) -> None:
        """Add numbered entries with their hashes in one transaction; durable when this returns."""
        with self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for place, entry, digest in entries:
                    self._insert(place, entry, digest)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _insert(self, place: int, entry: Record, digest: str) -> None:
        if isinstance(entry, RoundRecord):
            self._insert_round(place, entry, digest)
        elif isinstance(entry, WindowRecord):
            row = (entry.index, entry.first, entry.last, json.dumps(entry.chosen), entry.reference)
            self._put("windows", (place, *row, digest))
        elif isinstance(entry, ClosingRecord):
            self._put("closing", (place, entry.rounds, digest))
        else:
            self._put("charter", (place, json.dumps(entry.to_table()), digest))

    def _insert_round(self, place: int, entry: RoundRecord, digest: str) -> None:
        names = (entry.start, entry.after, entry.mean, entry.updates)
        found = entry.present()
        shape = (json.dumps(entry.references), int(found.coordinates.sketched), b"")
        added = (  # since format 1, in order
            instant_text(entry.began),
            instant_text(entry.ended),
            entry.notes,
            entry.state_before,
            entry.state_after,
        )
        row = (place, entry.index, entry.loss, entry.divergence, *names, *shape, digest, *added)
        self._put("rounds", row)
        points = encode(found.coordinates.numbers, found.coordinates.digits)
        columns = (pack_ids(found), pack_numbers(found), found.coordinates.digits)
        self._put("participants", (entry.index, *columns, sha256(points).hexdigest(), points))
        for at, left_out in enumerate(entry.rejected):
            self._put("rejections", (entry.index, at, left_out.client, left_out.reason))

    def _put(self, table: str, row: tuple[object, ...]) -> None:
        self._connection.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)

    def checkpoint(self) -> None:
        """Move everything committed into the main file, fsync it, and empty the WAL."""
        deadline, warned = monotonic() + FOR_READERS, False
        while self._is_busy():
            if monotonic() > deadline:
                raise HistoryError(
                    f"{self.path}: a reader kept the file open for more than {FOR_READERS:.0f} s; "
                    "nothing is lost, try again when it has ended"
                )
            if not warned:
                getLogger("fedcrab").warning("%s: waiting for a reader to finish", self.path)
                warned = True
            sleep(0.01)

    def _is_busy(self) -> bool:
        """Return whether readers blocked a checkpoint; SQLite itself waits for some readers, not for all."""
        with self._explained():
            busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return bool(busy)

    def close(self) -> None:
        """Close the file."""
        with self._explained():
            self._connection.close()
