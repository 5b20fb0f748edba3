"""Reads what ``Compact`` stores: the updates of a round, and the models that follow from the packed steps.

The packed file of round t has one row per client, in the order of the ids, and a last row: the step
G_t = M_{t+1} - M_t. A model that is not stored exactly is the nearest earlier exact one plus the packed steps
since then. Its error is at most the sum of the errors that were measured when the steps were packed.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import DamagedError, HistoryError
from fedcrab.history.compact import Packing
from fedcrab.history.consistency import stored_problems
from fedcrab.history.ledger_state import LedgerState
from fedcrab.history.quantise import Bytes
from fedcrab.history.selection import Compact
from fedcrab.history.snapshots import Snapshots
from fedcrab.types import ClientId, Updates, Vector


def packed_updates(
    snapshots: Snapshots, contents: LedgerState, round: int, clients: Collection[ClientId] | None = None
) -> Updates:
    """Return the packed updates of a round, of these clients or of all."""
    entry, packed = contents.rounds[round], read_packed(snapshots, contents, round)[:-1]
    names, packing = entry.clients, packing_of(contents)
    wanted = frozenset(names if clients is None else clients)
    rows = [place for place, name in enumerate(names) if name in wanted]
    if len(rows) == len(names):
        return Updates(names, packing.unpack(packed), entry.examples)
    packing.check(packed)
    return Updates(tuple(names[row] for row in rows), packing.unpack(packed[rows]), entry.examples[rows])


def packed_errors(snapshots: Snapshots, contents: LedgerState, round: int) -> NDArray[np.float64]:
    """Return ‖q - u‖ of each client's update, measured when it was packed."""
    return packing_of(contents).errors(read_packed(snapshots, contents, round)[:-1])


def rebuilt_model(snapshots: Snapshots, contents: LedgerState, round: int) -> Vector:
    """Return M_t from the nearest earlier exact model and the packed steps since."""
    packing, first = packing_of(contents), _exact_before(contents, round)
    model = snapshots.model(contents.rounds[first].start, contents.charter.layout)
    for t in range(first, round):
        model += packing.unpack(read_packed(snapshots, contents, t)[-1:])[0]
    return model


def rebuilt_error(snapshots: Snapshots, contents: LedgerState, round: int) -> float:
    """Return Σ ‖q - G_s‖ over the packed steps of a rebuilt model."""
    packing, rounds = packing_of(contents), range(_exact_before(contents, round), round)
    return float(sum(packing.errors(read_packed(snapshots, contents, t)[-1:])[0] for t in rounds))


def packed_problems(snapshots: Snapshots, contents: LedgerState, round: int) -> list[str]:
    """Return how the packed updates and step of a round contradict its norms and cosines."""
    packing, entry, rows = (
        packing_of(contents),
        contents.rounds[round],
        read_packed(snapshots, contents, round),
    )
    errors = packing.errors(rows).tolist()
    vectors = (packing.unpack(rows[place : place + 1])[0] for place in range(len(entry.clients)))
    step, trained = packing.unpack(rows[-1:])[0], contents.charter.layout.trained()
    return stored_problems(entry, vectors, errors[:-1], step, errors[-1], trained)


def _exact_before(contents: LedgerState, round: int) -> int:
    return next(t for t in range(round, -1, -1) if contents.has_exact_model(t))


def packing_of(contents: LedgerState) -> Packing:
    """Return how this history packs its rows."""
    selection = contents.charter.selection
    if not isinstance(selection, Compact):
        raise HistoryError("this history stores no packed updates; record with Compact()")
    return Packing(contents.charter.layout, selection.bits)


def read_packed(snapshots: Snapshots, contents: LedgerState, round: int) -> Bytes:
    """Return the packed rows of a round, checked against their hash."""
    entry, packing = contents.rounds[round], packing_of(contents)
    if entry.updates is None:
        raise DamagedError(f"round {round} has no packed updates, although its selection keeps them")
    shape = (len(entry.clients) + 1, packing.width)
    return np.asarray(snapshots.array(entry.updates, "packed", shape, "U8"), np.uint8)
