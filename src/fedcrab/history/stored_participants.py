"""The clients of a round, read from the ledger on demand and checked against the chain."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NoReturn

import numpy as np

from fedcrab.admission import MOST_EXAMPLES
from fedcrab.errors import DamagedError
from fedcrab.history.chain import link
from fedcrab.history.gram import Coordinates
from fedcrab.history.ledger_file import LedgerFile
from fedcrab.history.ledger_rows import checked_hash, text_of, whole
from fedcrab.history.number_planes import EXACT, decode, may_hold
from fedcrab.history.participants import Participants, are_ids, are_numbers, count_ids, unpack
from fedcrab.history.records import RoundRecord, Settings, describe
from fedcrab.history.snapshots import is_hash
from fedcrab.vectors import Matrix64

LARGEST = 1e60  # of a coordinate: more than float32 vectors can give, but its square is still finite


@dataclass(frozen=True, slots=True)
class LedgerNumbers:
    """The coordinates of a round, in the ledger."""

    file: LedgerFile
    round: int
    count: int
    digits: int
    sha256: str | None  # None before format 4: they were in the round's own row, as float64

    def __len__(self) -> int:
        """Return how many there are."""
        return self.count

    def read(self) -> Matrix64:
        """Return all coordinates, checked against their hash; cached if there is room."""
        with self.file.lock:
            held: Matrix64 | None = self.file.numbers.get(self.round)
            if held is None:
                with self.file.connection() as connection:
                    held = self.read_from(connection)
                held.flags.writeable = False
                self.file.numbers.put(self.round, held, held.nbytes)
        return held

    def read_from(self, connection: sqlite3.Connection) -> Matrix64:
        """Return all coordinates, read over this connection."""
        table = "rounds" if self.sha256 is None else "participants"
        row = connection.execute(f"SELECT coordinates FROM {table} WHERE round = ?", (self.round,)).fetchone()
        content = row[0] if row else None
        if not isinstance(content, bytes):
            raise self._damaged("its coordinates are not an array of numbers")
        if self.sha256 is not None and sha256(content).hexdigest() != self.sha256:
            raise self._damaged("its coordinates do not match their hash")
        try:
            numbers = _plain(content) if self.sha256 is None else decode(content, self.count, self.digits)
        except DamagedError as error:
            raise self._damaged(str(error)) from error
        if len(numbers) != self.count or not (np.abs(numbers) <= LARGEST).all():
            raise self._damaged(f"its coordinates are not {self.count} valid numbers")
        return numbers

    def _damaged(self, why: str) -> DamagedError:
        return DamagedError(f"{self.file.path}: round {self.round}: {why}")


def _plain(content: bytes) -> Matrix64:
    if len(content) % 8:
        raise DamagedError("the coordinates are not an array of numbers")
    return np.frombuffer(content, "<f8")


class StoredParticipants:
    """The clients of one round of a ledger. The first access checks the round's link in the chain."""

    __slots__ = ("_charter", "_digest", "_entry", "_file", "_previous")

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    def expect(self, entry: RoundRecord, previous: str, digest: str, charter: Settings) -> None:
        """Set what they must match: the rest of their round, its hash and the previous hash."""
        self._entry, self._previous, self._digest, self._charter = entry, previous, digest, charter

    def __call__(self) -> Participants:
        """Return the clients, from memory or from the ledger."""
        index, file = self._entry.index, self._file
        with file.lock:
            found: Participants | None = file.clients.get(index)
            if found is None:
                found = self._read()
                file.clients.put(index, found, found.size)
        return found

    def _read(self) -> Participants:
        with self._file.connection() as connection:
            try:
                found = read_participants(connection, self._entry, self._charter, self._file)
                self._check(found)
            except (DamagedError, ValueError, TypeError, OverflowError) as error:
                named = str(error) if str(error).startswith("round ") else f"{describe(self._entry)}: {error}"
                raise DamagedError(f"{self._file.path}: {named}") from error
        return found

    def _check(self, found: Participants) -> None:
        """Raise unless the round matches its hash and its selection follows from its numbers."""
        whole_entry = replace(self._entry, present=found)
        if link(self._previous, whole_entry) != self._digest:
            raise DamagedError(f"{describe(self._entry)} does not match its hash")
        check_participants(whole_entry, self._charter)


def check_participants(entry: RoundRecord, charter: Settings) -> None:
    """Raise unless a round's clients follow the rules of the charter."""
    selected = charter.selection.select(entry.cosines.tolist())
    sketched = len(entry.clients) > charter.gram_limit
    width = charter.sketch_size if sketched else entry.coordinates.points
    shape = entry.coordinates.sketched, entry.coordinates.width
    if selected != tuple(entry.selected.tolist()) or shape != (sketched, width):
        raise DamagedError(f"round {entry.index}: its selection does not follow from its numbers")


def read_participants(
    connection: sqlite3.Connection, entry: RoundRecord, charter: Settings, file: LedgerFile
) -> Participants:
    """Return the clients of a round over this connection: its columns or, before format 4, its rows."""
    found = (
        _of_columns(connection, entry, charter, file)
        if entry.in_columns
        else _of_rows(connection, entry, file)
    )
    return file.shared(found)


def _of_columns(
    connection: sqlite3.Connection, entry: RoundRecord, charter: Settings, file: LedgerFile
) -> Participants:
    columns = "ids, numbers, digits, coordinates_sha256, length(coordinates)"
    query = f"SELECT {columns} FROM participants WHERE round = ?"
    ids, numbers, digits, digest, size = connection.execute(query, (entry.index,)).fetchone()
    clients = count_ids(ids)
    points, sketched = clients + len(entry.references), clients > charter.gram_limit
    count = points * charter.sketch_size if sketched else points * (points + 1) // 2
    if not may_hold(whole(size), count, whole(digits)):
        raise DamagedError(f"{size} bytes of coordinates do not describe {points} points")
    held = LedgerNumbers(file, entry.index, count, whole(digits), checked_hash(digest))
    return unpack(ids, numbers, Coordinates(points, sketched, held, held.digits))


def _of_rows(connection: sqlite3.Connection, entry: RoundRecord, file: LedgerFile) -> Participants:
    query = (
        "SELECT client, examples, norm, cosine, selected, sha256 FROM clients WHERE round = ? ORDER BY client"
    )
    rows = connection.execute(query, (entry.index,)).fetchall()
    sketched, size = connection.execute(
        "SELECT sketched, length(coordinates) FROM rounds WHERE round = ?", (entry.index,)
    ).fetchone()
    points = len(rows) + len(entry.references)
    fits = points * (points + 1) // 2 == size / 8 if not sketched else points and not size % (8 * points)
    if not fits:
        raise DamagedError(f"{size} bytes of coordinates do not describe {points} points")
    held = LedgerNumbers(file, entry.index, size // 8, EXACT, None)
    coordinates = Coordinates(points, bool(sketched), held)
    ids, *columns, digests = zip(*rows, strict=True) if rows else ((), (), (), (), (), ())
    if rows and not _are_clients(ids, columns, digests):
        _refuse_clients(rows)
    examples, norms, cosines, selected = np.array(columns, np.float64)
    raw = bytes.fromhex("".join(digests))
    return Participants(ids, examples, norms, cosines, selected.astype(bool), raw, coordinates)


def _are_clients(ids: tuple[Any, ...], columns: Sequence[tuple[Any, ...]], digests: tuple[Any, ...]) -> bool:
    """Return whether all values of a round's clients have the right type and are within their bounds."""
    if any(set(map(type, texts)) != {str} for texts in (ids, digests)):
        return False
    if not all(set(map(type, column)) <= {int, float} for column in columns):
        return False
    try:
        numbers = np.array(columns, np.float64)
    except OverflowError:
        return False
    return are_ids(ids) and all(map(is_hash, digests)) and are_numbers(*numbers)


def _refuse_clients(rows: Sequence[tuple[Any, ...]]) -> NoReturn:
    """Raise an error that names the first invalid client of a round."""
    before = ""
    for client, *values, digest in rows:
        if text_of(client) <= before:
            raise DamagedError(f"client {client[:40]!r} is not in the order of the ids")
        before = client
        checked_hash(digest)
        examples, *_ = map(_finite, values)
        if not 0 < examples <= MOST_EXAMPLES:
            raise DamagedError(f"client {client[:40]!r} cannot have {examples:g} examples")
    raise DamagedError("the clients of a round are invalid")


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or not np.isfinite(value):
        raise DamagedError(f"expected a finite number, found {str(value)[:40]!r}")
    return float(value)
