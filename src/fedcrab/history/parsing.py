"""The rows of a ledger as entries: every value is of its kind and within its bounds, or it is refused."""

from __future__ import annotations

import json
import sqlite3
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.admission import LONGEST_TEXT, MOST_EXAMPLES
from fedcrab.errors import DamagedError
from fedcrab.geometry import Coordinates
from fedcrab.history.entries import FORMAT, Charter, RoundEntry, WindowEntry, number
from fedcrab.history.snapshots import is_hash
from fedcrab.types import Rejection

Row = tuple[Any, ...]
LONGEST_JSON = 2**20  # characters
MOST_NUMBERS = 2**48  # in a tensor
LONGEST = 1e60  # a coordinate: above what float32 vectors can give, and its square is still a number


def parse_charter(row: Row) -> Charter:
    table = _json(row[1])
    if table["format"] != FORMAT:
        raise DamagedError(
            f"format {table['format']!r} is not known here; this program reads format {FORMAT}"
        )
    charter = Charter.from_table(table)
    for f in charter.layout.fields:
        _text(f.name)
        if prod(max(whole(n), 1) for n in f.shape) > MOST_NUMBERS:
            raise DamagedError(f"a tensor of shape {str(f.shape)[:40]} is beyond any machine")
        if not isinstance(f.trained, bool) or not isinstance(f.integer, bool):
            raise DamagedError(f"tensor {f.name[:40]!r} must be said to be trained or not, integer or not")
    if not whole(charter.gram_limit) or not whole(charter.sketch_size):
        raise DamagedError("gram_limit and sketch_size must be 1 or more")
    whole(charter.seed), _text(charter.aggregation), _text(charter.notes), checked_hash(charter.initial_model)
    return charter


def parse_window(row: Row) -> WindowEntry:
    chosen = tuple(whole(t) for t in _json(row[4]))
    return WindowEntry(whole(row[1]), whole(row[2]), whole(row[3]), chosen, number(_real_or_null(row[5])))


def parse_round(row: Row, connection: sqlite3.Connection) -> RoundEntry:
    _, index, loss, divergence, start, after, mean, updates, compared_with, sketched, blob, _ = row
    clients, digests, columns = _clients(connection, whole(index))
    references = tuple(whole(t) for t in _json(compared_with))
    return RoundEntry(
        index=index,
        loss=number(_real_or_null(loss)),
        divergence=number(_real_or_null(divergence)),
        start=checked_hash(start),
        after=checked_hash(after),
        mean=checked_hash(mean),
        updates=None if updates is None else checked_hash(updates),
        clients=clients,
        examples=columns[0],
        norms=columns[1],
        cosines=columns[2],
        selected=columns[3].astype(bool),
        digests=digests,
        references=references,
        coordinates=_coordinates(blob, len(clients) + len(references), bool(whole(sketched))),
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
        digests.append(checked_hash(digest))
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


def checked_hash(value: object) -> str:
    if not is_hash(value):
        raise DamagedError(f"a sha256 is expected where {str(value)[:40]!r} stands")
    return str(value)
