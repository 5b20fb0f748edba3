"""The clients' answers during a recovery, stored as evidence: which model was sent, and what came back.

    DIR/answers/<round>-<model>-<clients>.json   the clients asked in a round, and the names of the vectors
    DIR/answers/<sha256>.safetensors             models and updates, named by the hash of their content

A certificate proves more from vectors than from lengths (:mod:`fedcrab.certificate.enclosure`). Answers need
as much space as the updates themselves, so they are stored only on request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedcrab.admission import screen_updates
from fedcrab.errors import DamagedError, FedcrabError
from fedcrab.files import file_errors, make_directory, read_regular, sync_directory, write_named
from fedcrab.history import History
from fedcrab.history.snapshots import Snapshots, is_hash
from fedcrab.rollback.decision import Plan
from fedcrab.types import ClientId, Fleet, Layout, Updates, Vector

ANSWERS = "answers"
LARGEST = 2**26  # bytes per record, without its vectors


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What clients answered to one model in one round."""

    round: int
    model: Vector = field(repr=False)
    updates: Updates = field(repr=False)
    errors: tuple[float, ...] = ()  # the largest distance of each update from the sent one; empty if exact
    model_error: float = 0.0  # the largest distance of the model from the one that was sent out


class RecordedFleet:
    """A fleet around a fleet that passes every usable answer to ``keep``.

    ``epochs`` is the number of local epochs in the training. Answers with another number are not stored,
    because no certificate can use them: they come from a different map.
    """

    def __init__(self, fleet: Fleet, keep: Callable[[Answers], None], *, epochs: int | None = None) -> None:
        self._fleet, self._keep, self._epochs = fleet, keep, epochs

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """Return the answers of the inner fleet."""
        updates = self._fleet.train(model, clients, round=round, epochs=epochs)
        usable, _ = screen_updates(updates.only(clients), size=len(model))
        if usable.clients and epochs in (None, self._epochs):
            self._keep(Answers(round, model, usable))
        return updates


def stored_answers(history: History) -> list[Answers]:
    """Return the answers in a history: exact with ``Everything``, with a known error with ``Compact``."""
    found = []
    for t in range(len(history.rounds)):
        if history.contents.has_updates(t) and history.rounds[t].clients:
            errors = tuple(history.update_errors(t).tolist())
            found.append(Answers(t, history.model(t), history.updates(t), errors, history.model_error(t)))
    return found


def honest_clients(plan: Plan) -> list[ClientId]:
    """Return every client that took part and is not malicious."""
    return [client for client in plan.history.clients if client not in plan.malicious]


def ask_at(plan: Plan, fleet: Fleet, model: Vector, *, epochs: int | None = None) -> tuple[ClientId, ...]:
    """Ask every honest client once, at the recovered model, with the last round's batches; return them.

    The answers go to a :class:`RecordedFleet`. With full batches they give the honest mean update at that
    model in every round of the history.
    """
    clients = honest_clients(plan)
    if clients:
        fleet.train(model, clients, round=len(plan.history.rounds) - 1, epochs=epochs)
    return tuple(clients)


class AnswerFolder:
    """The answers in a recovery's directory."""

    def __init__(self, directory: Path, layout: Layout) -> None:
        self._place, self._layout = directory / ANSWERS, layout
        self._vectors = Snapshots(self._place)

    def save(self, answers: Answers) -> None:
        """Add answers; durable when this returns. Answers to the same question are replaced."""
        updates = answers.updates
        with file_errors(f"{self._place}: the answers of round {answers.round} were not saved"):
            make_directory(self._place.absolute())
            table = {
                "round": answers.round,
                "clients": list(updates.clients),
                "examples": updates.weights.tolist(),
                "model": self._vectors.put_model(self._layout, answers.model),
                "updates": self._vectors.put_array("updates", updates.vectors),
            }
            self._vectors.settle()
            asked = hashlib.sha256(json.dumps(table["clients"]).encode()).hexdigest()
            name = f"{answers.round:06}-{str(table['model'])[:16]}-{asked[:16]}.json"
            write_named(self._place / name, [json.dumps(table).encode()])
            sync_directory(self._place)

    def has(self, model: Vector, clients: Sequence[ClientId]) -> bool:
        """Return whether all of these clients have already answered to this model."""
        name = self._vectors.hash_of(self._layout, model)
        found = (table["clients"] for table in self.tables() if table["model"] == name)
        return {*clients} <= {client for group in found for client in group}

    def tables(self) -> list[Mapping[str, Any]]:
        """Return every record without its vectors, sorted by name."""
        return [_record(path) for path in sorted(self._place.glob("*.json"))]

    def read(self) -> tuple[Answers, ...]:
        """Return every stored answer, checked against the hashes in its record."""
        return tuple(self._read(table) for table in self.tables())

    def _read(self, table: Mapping[str, Any]) -> Answers:
        shape = (len(table["clients"]), self._layout.size)
        vectors = self._vectors.array(table["updates"], "updates", shape, "F32")
        updates = Updates(
            tuple(table["clients"]), np.asarray(vectors, np.float32), np.array(table["examples"], float)
        )
        if not np.isfinite(updates.vectors).all():
            raise DamagedError(f"{self._place}: answers of round {table['round']} are not finite")
        return Answers(table["round"], self._vectors.model(table["model"], self._layout), updates)


def _record(path: Path) -> dict[str, Any]:
    """Return the record of some answers; the file is not trusted."""
    try:
        table = json.loads(read_regular(path, limit=LARGEST))
        clients, examples = table["clients"], table["examples"]
        good = (
            type(table["round"]) is int
            and table["round"] >= 0
            and is_hash(table["model"])
            and is_hash(table["updates"])
            and all(isinstance(client, str) for client in clients)
            and clients == sorted(set(clients))
            and len(examples) == len(clients) > 0
            and all(type(n) in (int, float) and 0 < n < 1e100 for n in examples)
        )
    except FedcrabError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError):
        good = False
    if not good:
        raise DamagedError(f"{path}: not a valid record of answers")
    return dict(table)
