"""The limits of a history, checked before anything is written, so that everything written can be read.

Readers enforce limits (:mod:`fedcrab.history.ledger_rows`, :mod:`fedcrab.history.snapshots`), because a
ledger is not trusted. Writers check the same constants, and run the parser itself.
"""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod

import numpy as np

from fedcrab.admission import LONGEST_TEXT, as_printable, no_updates, unusable_rows
from fedcrab.errors import ConfigError, DamagedError, RecordError, shown
from fedcrab.history.chain import GENESIS
from fedcrab.history.ledger_rows import LONGEST_JSON, MOST_NUMBERS, parse_charter
from fedcrab.history.records import Settings
from fedcrab.history.selection import KINDS, Selection
from fedcrab.history.server_state import check_state
from fedcrab.history.snapshots import HEADER, RESERVED, header, sums
from fedcrab.types import Field, Layout, Rejection, Round, ServerState, Updates, Vector
from fedcrab.vectors import is_finite

MOST_POINTS = (
    15_000  # clients and earlier means: SQLite stores their exact coordinates, a triangle, as one value
)
MOST_COORDINATES = 10**8  # of a round, sketched or not: 800 MB; SQLite's limit is 1 GB
MOST_SEED = 2**128


def check_charter(charter: Settings, model: Vector) -> None:
    """Raise ``ConfigError`` unless the settings of a new history can be written and read back."""
    _check_layout(charter.layout)
    size = charter.layout.size
    if not _are_float32(model, size) or not is_finite(model):
        raise ConfigError(f"the initial model must be {size} finite float32 numbers")
    _check_text("the name of the aggregation", charter.aggregation)
    if not isinstance(charter.notes, str):
        raise ConfigError(f"notes must be a text, got {shown(charter.notes)}")
    for name, value, least, most in (
        ("gram_limit", charter.gram_limit, 1, MOST_POINTS),
        ("sketch_size", charter.sketch_size, 1, MOST_COORDINATES),
        ("seed", charter.seed, 0, MOST_SEED),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ConfigError(f"{name} must be a whole number of {least} to {most}, got {shown(value)}")
    _check_selection(charter.selection, charter.gram_limit)
    _check_size(charter)
    _check_by_reading(charter)


def _check_layout(layout: Layout) -> None:
    if not isinstance(layout, Layout):
        raise ConfigError(f"the layout must be a fedcrab.Layout, got {shown(layout)}")
    for field in layout.fields:
        _check_field(field)


def _check_field(field: Field) -> None:
    _check_text("the name of a tensor", field.name)
    if field.name == RESERVED:
        raise ConfigError(f"no tensor can be named {RESERVED!r}, which safetensors reserves")
    dimensions = field.shape if isinstance(field.shape, tuple) else (None,)
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in dimensions):
        raise ConfigError(
            f"tensor {field.name!r}: a shape must be a tuple of whole numbers, got {shown(field.shape)}"
        )
    if prod(max(n, 1) for n in field.shape) > MOST_NUMBERS:
        raise ConfigError(f"tensor {field.name!r}: shape {shown(field.shape)} is too large")
    if not isinstance(field.trained, bool) or not isinstance(field.integer, bool):
        raise ConfigError(f"tensor {field.name!r}: trained and integer must be true or false")


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str) or not text.isprintable() or len(text) > LONGEST_TEXT:
        raise ConfigError(
            f"{what} must be printable and at most {LONGEST_TEXT} characters long, got {shown(text, 80)}"
        )


def _check_selection(selection: Selection, gram_limit: int) -> None:
    if not isinstance(selection, Selection):
        raise ConfigError(f"the selection must be one of {', '.join(KINDS)}, got {shown(selection)}")
    if gram_limit + _longest_window(selection) > MOST_POINTS:
        raise ConfigError(
            f"gram_limit and max_window together must be at most {MOST_POINTS}, "
            f"got {gram_limit} and {_longest_window(selection)}"
        )


def _longest_window(selection: Selection) -> int:
    return int(getattr(selection, "max_window", 1))


def _check_size(charter: Settings) -> None:
    """Check sizes: the charter is one JSON text, and tensor names are in the header of each model."""
    length, tensors = len(_as_json(charter)), len(charter.layout.fields)
    if length > LONGEST_JSON:
        remedy = "shorten the notes" if charter.notes else "join tensors, or shorten their names"
        raise ConfigError(
            f"{tensors} tensors and notes of {len(charter.notes)} characters need {length} characters of "
            f"JSON; the limit is {LONGEST_JSON}; {remedy}"
        )
    if len(header(charter.layout)) > HEADER:
        raise ConfigError(f"{tensors} tensors with these names exceed what a history can describe")


def _as_json(charter: Settings) -> str:
    """Return the JSON that the ledger will store; the model's hash is not known yet, but its length is."""
    return json.dumps(replace(charter, initial_model=GENESIS).to_table())


def _check_by_reading(charter: Settings) -> None:
    """Run the reader itself, so that all its limits apply, including future ones."""
    try:
        parse_charter({"settings": _as_json(charter)})
    except (DamagedError, ConfigError) as error:
        raise ConfigError(f"these settings could not be read back: {error}") from error


def checked_round(round: Round, charter: Settings, expected: int) -> Round:
    """Return the round with plain numbers and printable rejections; raise ``RecordError`` if it is invalid.

    No client is left out here: what was aggregated is what is recorded.
    """
    if not isinstance(round, Round) or not isinstance(round.updates, Updates):
        raise RecordError(f"record takes a fedcrab.Round with fedcrab.Updates, got {shown(round)}")
    index = _index(round.index, expected)
    for name, vector in (("start", round.start), ("aggregate", round.aggregate)):
        _check_vector(f"round {index}: {name}", vector, charter.layout.size)
    _check_updates(index, round, charter)
    if not all(is_finite(part) for part in sums(round.start, round.aggregate)):
        raise RecordError(
            f"round {index}: start + aggregate overflows float32, so no round could follow; "
            "keep the model unchanged, and leave these clients out of the round"
        )
    return replace(
        round,
        index=index,
        updates=round.updates if round.updates.clients else no_updates(charter.layout.size),
        loss=real(f"round {index}: the loss", round.loss),
        divergence=real(f"round {index}: the divergence", round.divergence),
        rejected=_rejected(index, round.rejected),
        notes=_notes(index, round.notes),
        server=_server(round.server),
    )


def _index(index: object, expected: int) -> int:
    if isinstance(index, int | np.integer) and not isinstance(index, bool):
        whole = int(index)
        if whole >= 0 and whole in (expected, expected - 1):
            return whole
    raise RecordError(f"expected round {expected}, got round {shown(index)}")


def _are_float32(vector: object, size: int) -> bool:
    return isinstance(vector, np.ndarray) and vector.shape == (size,) and vector.dtype == np.float32


def _check_vector(what: str, vector: object, size: int) -> None:
    if not _are_float32(vector, size):
        found = f"{vector.dtype} of shape {vector.shape}" if isinstance(vector, np.ndarray) else shown(vector)
        raise RecordError(f"{what} must be {size} float32 numbers, got {found}")
    if not is_finite(np.asarray(vector)):
        raise RecordError(
            f"{what} is not finite; pass what clients send through fedcrab.admit before aggregating"
        )


def _check_updates(index: int, round: Round, charter: Settings) -> None:
    updates = round.updates
    for client, reason in unusable_rows(updates, size=charter.layout.size).items():
        raise RecordError(
            f"round {index}: client {shown(client)} is in the aggregate but cannot be recorded: {reason}; "
            "pass what clients send through fedcrab.admit before aggregating"
        )
    if not updates.clients and np.any(round.aggregate):
        raise RecordError(f"round {index}: there are no updates, so the aggregate must be zero")
    points = len(updates.clients) + _longest_window(charter.selection) + 1
    if len(updates.clients) > charter.gram_limit and points * charter.sketch_size > MOST_COORDINATES:
        raise RecordError(
            f"round {index}: {len(updates.clients)} clients with sketches of {charter.sketch_size} numbers "
            "exceed what a ledger can store per round; create the history with a smaller sketch_size"
        )


def _rejected(index: int, rejected: object) -> tuple[Rejection, ...]:
    if not isinstance(rejected, tuple | list) or not all(isinstance(r, Rejection) for r in rejected):
        raise RecordError(f"round {index}: rejected must be a tuple of Rejections, got {shown(rejected)}")
    return tuple(map(as_printable, rejected))


def _notes(index: int, notes: object) -> str:
    if not isinstance(notes, str):
        raise RecordError(f"round {index}: notes must be a text, got {shown(notes)}")
    if len(notes) > LONGEST_JSON:
        raise RecordError(f"round {index}: notes have {len(notes)} characters; the limit is {LONGEST_JSON}")
    return notes


def _server(state: object) -> ServerState | None:
    if state is None:
        return None
    if not isinstance(state, ServerState):
        raise RecordError(f"the server's state must be a ServerState, got {shown(state)}")
    check_state(state)
    return state if state.arrays or state.values else None


def real(what: str, value: object, *, error: type[Exception] = RecordError) -> float:
    """Return a number as a float; infinite and NaN are allowed. -0.0 becomes 0.0, as in SQLite."""
    cause: Exception | None = None
    if not isinstance(value, str | bytes) and getattr(value, "shape", ()) == ():
        try:
            return float(value) + 0.0  # type: ignore[arg-type]
        except Exception as failed:  # a caller's __float__ may raise anything
            cause = failed
    raise error(f"{what} must be a number, got {shown(value)}") from cause
