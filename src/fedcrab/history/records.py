"""The entries of a ledger, which the hash chain links."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import isnan
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedcrab.history import selection
from fedcrab.history.gram import Coordinates
from fedcrab.history.migrate import FORMAT
from fedcrab.history.number_planes import encode
from fedcrab.history.participants import Participants, pack_ids, pack_numbers
from fedcrab.types import ClientId, Field, Layout, Rejection


@dataclass(frozen=True, slots=True)
class Settings:
    """What is fixed when a history is created."""

    layout: Layout
    selection: selection.Selection
    aggregation: str  # the name of the rule that made the aggregates
    initial_model: str  # the hash of M_0
    initial_loss: float
    seed: int  # of the sketches
    gram_limit: int  # above this many participants a round is sketched
    sketch_size: int
    notes: str = ""  # free text, for example the server's configuration
    format: int = FORMAT  # the format that the history was created with

    @property
    def engine(self) -> Literal["simulator", "flower", "nvflare", "own"]:
        """Where the clients of this history are, from what the engine wrote into the notes."""
        try:
            notes = json.loads(self.notes or "null")
        except (ValueError, RecursionError):
            notes = None
        if not isinstance(notes, dict):
            return "own"
        if "flower" in notes or "nvflare" in notes:
            return "flower" if "flower" in notes else "nvflare"
        return "simulator" if "clients" in notes else "own"

    def to_table(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "format": self.format,
            "layout": [[f.name, list(f.shape), f.trained, f.integer] for f in self.layout.fields],
            "selection": selection.to_table(self.selection),
            "aggregation": self.aggregation,
            "initial_model": self.initial_model,
            "initial_loss": _plain(self.initial_loss),
            "seed": self.seed,
            "gram_limit": self.gram_limit,
            "sketch_size": self.sketch_size,
            "notes": self.notes,
        }

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Settings:
        """Return the settings that :meth:`to_table` wrote."""
        fields = tuple(Field(name, tuple(shape), t, i) for name, shape, t, i in table["layout"])
        return cls(
            layout=Layout(fields),
            selection=selection.from_table(table["selection"]),
            aggregation=table["aggregation"],
            initial_model=table["initial_model"],
            initial_loss=number(table["initial_loss"]),
            seed=table["seed"],
            gram_limit=table["gram_limit"],
            sketch_size=table["sketch_size"],
            notes=table["notes"],
            format=table["format"],
        )

    def facts(self) -> list[Any]:
        """Return what the chain covers."""
        return ["charter", self.to_table()]


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round. Its clients may still be in the ledger; they are read when a column is first used."""

    index: int
    loss: float  # of the model after the round
    divergence: float
    start: str  # the hash of M_t
    after: str  # the hash of M_{t+1}
    mean: str  # the hash of Ḡ_t; later rounds are compared with it while the window is open
    updates: str | None  # the hash of the update vectors, if the selection keeps them
    references: tuple[int, ...]  # the earlier rounds whose means are points after the clients
    present: Callable[[], Participants]
    rejected: tuple[Rejection, ...]
    began: datetime | None = None  # UTC; since format 2
    ended: datetime | None = None
    notes: str | None = None  # free text of the server; since format 3
    state_before: str | None = None  # the hash of the server's state that belongs to M_t, if any
    state_after: str | None = None  # and with M_{t+1}
    in_columns: bool = True  # since format 4 the clients of a round are columns; before, rows

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The client ids, sorted."""
        return self.present().clients

    @property
    def examples(self) -> NDArray[np.float64]:
        """The number of examples per client."""
        return self.present().examples

    @property
    def norms(self) -> NDArray[np.float64]:
        """The length of each update."""
        return self.present().norms

    @property
    def cosines(self) -> NDArray[np.float64]:
        """The cosine of each update with the aggregate."""
        return self.present().cosines

    @property
    def selected(self) -> NDArray[np.bool_]:
        """Whether each update was selected."""
        return self.present().selected

    @property
    def digests(self) -> tuple[str, ...]:
        """The sha256 of each update."""
        return self.present().digests

    @property
    def coordinates(self) -> Coordinates:
        """The coordinates of the clients, then of the references."""
        return self.present().coordinates

    def facts(self) -> list[Any]:
        """Return what the chain covers. Values that a later format added are included only if known."""
        head = [_plain(self.loss), _plain(self.divergence), self.start, self.after, self.mean, self.updates]
        left_out = [[r.client, r.reason] for r in self.rejected]
        facts = ["round", self.index, head, self._clients(), left_out, self._points()]
        added = {name: value for name, value in self._added().items() if value is not None}
        return [*facts, added] if added else facts

    def _clients(self) -> list[Any]:
        found = self.present()
        if self.in_columns:
            return [_sha(pack_ids(found).encode()), _sha(pack_numbers(found))]
        rows = zip(found.clients, *(a.tolist() for a in found.columns), found.digests, strict=True)
        return [list(row) for row in rows]

    def _points(self) -> list[Any]:
        found = self.present().coordinates
        if self.in_columns:
            return [list(self.references), found.sketched, found.digits, coordinates_hash(found)]
        points = np.ascontiguousarray(found.numbers, "<f8").tobytes()
        return [list(self.references), found.sketched, _sha(points)]

    def _added(self) -> dict[str, Any]:
        """Return the values that formats after the first added."""
        return {
            "began": instant_text(self.began),
            "ended": instant_text(self.ended),
            "notes": self.notes,
            "state_before": self.state_before,
            "state_after": self.state_after,
        }


def coordinates_hash(found: Coordinates) -> str:
    """Return the sha256 of coordinates as the ledger stores them; stored ones are not read for it."""
    known = getattr(found.held, "sha256", None)
    return known if isinstance(known, str) else _sha(encode(found.numbers, found.digits))


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """The decision about a closed window."""

    index: int
    first: int
    last: int
    chosen: tuple[int, ...]  # by the selection; round 0 is always kept too
    reference: float  # the loss that the next window is compared with

    def facts(self) -> list[Any]:
        """Return what the chain covers."""
        return ["window", self.index, self.first, self.last, list(self.chosen), _plain(self.reference)]


@dataclass(frozen=True, slots=True)
class ClosingRecord:
    """The last entry of a closed history."""

    rounds: int

    def facts(self) -> list[Any]:
        """Return what the chain covers."""
        return ["closing", self.rounds]


Record = Settings | RoundRecord | WindowRecord | ClosingRecord


def describe(entry: Record) -> str:
    """Return a name of an entry for messages."""
    if isinstance(entry, RoundRecord):
        return f"round {entry.index}"
    if isinstance(entry, WindowRecord):
        return f"window {entry.index}"
    return "charter" if isinstance(entry, Settings) else "closing"


def number(value: float | None) -> float:
    """Return a stored number; NULL means NaN."""
    return float("nan") if value is None else float(value)


def instant_text(when: datetime | None) -> str | None:
    """Return a time (UTC) as the ledger stores it: 2026-05-01T12:00:00.000000Z."""
    return None if when is None else when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _plain(value: float) -> float | None:
    return None if isnan(value) else float(value)


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
