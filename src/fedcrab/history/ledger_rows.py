"""Turns the rows of a ledger into entries. Every value must have the right type and be within its bounds."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import prod
from typing import Any

from fedcrab.admission import LONGEST_TEXT
from fedcrab.errors import DamagedError
from fedcrab.history.migrate import CHANGES, FORMAT
from fedcrab.history.participants import Participants
from fedcrab.history.records import (
    RoundRecord,
    Settings,
    WindowRecord,
    instant_text,
    number,
)
from fedcrab.history.snapshots import is_hash
from fedcrab.types import Rejection

Row = Mapping[str, Any]  # columns that the row's format does not have are absent
LONGEST_JSON = 2**20  # characters
MOST_NUMBERS = 2**48  # in a tensor


def parse_charter(row: Row) -> Settings:
    table = _json(row["settings"])
    if whole(table["format"]) not in CHANGES:
        raise DamagedError(
            f"format {table['format']!r} is not supported; this version reads formats 1 to {FORMAT}"
        )
    charter = Settings.from_table(table)
    for f in charter.layout.fields:
        text_of(f.name)
        if prod(max(whole(n), 1) for n in f.shape) > MOST_NUMBERS:
            raise DamagedError(f"a tensor of shape {str(f.shape)[:40]} is too large")
        if not isinstance(f.trained, bool) or not isinstance(f.integer, bool):
            raise DamagedError(f"tensor {f.name[:40]!r}: trained and integer must be true or false")
    if not whole(charter.gram_limit) or not whole(charter.sketch_size):
        raise DamagedError("gram_limit and sketch_size must be 1 or more")
    whole(charter.seed), text_of(charter.aggregation), checked_hash(charter.initial_model)
    if not isinstance(charter.notes, str):  # any text; it is never printed unchanged
        raise DamagedError(f"notes must be a text, got {str(charter.notes)[:40]!r}")
    return charter


def parse_window(row: Row) -> WindowRecord:
    chosen = tuple(whole(t) for t in _json(row["chosen"]))
    index, first, last = (whole(row[name]) for name in ("number", "first", "last"))
    return WindowRecord(index, first, last, chosen, number(_real_or_null(row["reference"])))


def parse_round(
    row: Row, present: Callable[[], Participants], rejected: tuple[Rejection, ...]
) -> RoundRecord:
    updates = row["updates"]
    if whole(row["sketched"]) > 1:
        raise DamagedError(f"sketched must be 0 or 1, got {row['sketched']!r}")
    return RoundRecord(
        index=whole(row["round"]),
        loss=number(_real_or_null(row["loss"])),
        divergence=number(_real_or_null(row["divergence"])),
        start=checked_hash(row["start"]),
        after=checked_hash(row["after"]),
        mean=checked_hash(row["mean"]),
        updates=None if updates is None else checked_hash(updates),
        references=tuple(whole(t) for t in _json(row["compared_with"])),
        present=present,
        rejected=rejected,
        began=_instant(row.get("began")),
        ended=_instant(row.get("ended")),
        notes=_notes(row.get("notes")),
        state_before=_hash_or_null(row.get("state_before")),
        state_after=_hash_or_null(row.get("state_after")),
        in_columns=bool(row["in_columns"]),
    )


def rejections(connection: sqlite3.Connection, index: int) -> tuple[Rejection, ...]:
    query = "SELECT place, client, reason FROM rejections WHERE round = ? ORDER BY place"
    rejected: list[Rejection] = []
    for place, client, reason in connection.execute(query, (index,)):
        if place != len(rejected):
            raise DamagedError(f"expected rejection {len(rejected)}, found rejection {place!r}")
        rejected.append(Rejection(text_of(client), text_of(reason)))
    return tuple(rejected)


def _json(value: object) -> Any:
    """Parse JSON of limited length: a long text would need far more memory."""
    return json.loads(text_of(value, longest=LONGEST_JSON))


def text_of(value: object, *, longest: int = LONGEST_TEXT) -> str:
    if not isinstance(value, str) or len(value) > longest or not value.isprintable():
        what = ascii(value[:30] if isinstance(value, str | bytes) else value)[:40]
        raise DamagedError(f"expected a printable text of at most {longest} characters, found {what}")
    return value


def whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise DamagedError(f"expected a whole number, found {str(value)[:40]!r}")
    return value


def _real_or_null(value: object) -> float | None:
    if value is not None and not isinstance(value, float):
        raise DamagedError(f"expected a number, found {str(value)[:40]!r}")
    return value


def _instant(value: object) -> datetime | None:
    """Return a time that is written exactly as :func:`instant_text` writes it."""
    if value is None:
        return None
    when = datetime.fromisoformat(text_of(value)).astimezone(UTC)
    if instant_text(when) != value:
        raise DamagedError(f"expected a time (UTC), found {str(value)[:40]!r}")
    return when


def _notes(value: object) -> str | None:
    """Return any text of limited length; it is never printed unchanged."""
    if value is not None and (not isinstance(value, str) or not 0 < len(value) <= LONGEST_JSON):
        raise DamagedError(f"notes must be a text of 1 to {LONGEST_JSON} characters")
    return value


def _hash_or_null(value: object) -> str | None:
    return None if value is None else checked_hash(value)


def checked_hash(value: object) -> str:
    if not is_hash(value):
        raise DamagedError(f"expected a sha256, found {str(value)[:40]!r}")
    return str(value)
