"""The entries of a ledger, and the chain of hashes that binds each to all before it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.history import selection
from fedcrab.history.gram import Coordinates
from fedcrab.history.migrate import FORMAT
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
    notes: str = ""  # whatever else the server wants to find here again, such as its configuration
    format: int = FORMAT  # that the history was created with

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
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
        """The charter that :meth:`to_table` wrote down."""
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
        """What the chain covers."""
        return ["charter", self.to_table()]


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round: every client of it, in the order of the ids, and the geometry of their updates."""

    index: int
    loss: float  # of the model after the round
    divergence: float
    start: str  # the hash of M_t
    after: str  # the hash of M_{t+1}
    mean: str  # the hash of Ḡ_t, which later rounds are compared with while the window is open
    updates: str | None  # the hash of the update vectors, where the selection keeps them
    clients: tuple[ClientId, ...]
    examples: NDArray[np.float64]
    norms: NDArray[np.float64]
    cosines: NDArray[np.float64]
    selected: NDArray[np.bool_]
    digests: tuple[str, ...]  # sha256 of each update
    references: tuple[int, ...]  # the earlier rounds whose means are points after the clients
    coordinates: Coordinates
    rejected: tuple[Rejection, ...]
    began: datetime | None = None  # UTC; since format 2
    ended: datetime | None = None
    notes: str | None = None  # whatever else the server wants to find here again; since format 3
    state_before: str | None = None  # the hash of the server's state that goes with M_t, where it has one
    state_after: str | None = None  # and with M_{t+1}

    def facts(self) -> list[Any]:
        """What the chain covers. What a later format added is in it only where it is known."""
        rows = zip(self.clients, *(a.tolist() for a in self.columns()), self.digests, strict=True)
        head = [_plain(self.loss), _plain(self.divergence), self.start, self.after, self.mean, self.updates]
        left_out = [[r.client, r.reason] for r in self.rejected]
        points = [list(self.references), self.coordinates.sketched, _sha(self.coordinates.numbers)]
        facts = ["round", self.index, head, [list(row) for row in rows], left_out, points]
        added = {name: value for name, value in self._added().items() if value is not None}
        return [*facts, added] if added else facts

    def _added(self) -> dict[str, Any]:
        """What formats after the first brought."""
        return {
            "began": instant_text(self.began),
            "ended": instant_text(self.ended),
            "notes": self.notes,
            "state_before": self.state_before,
            "state_after": self.state_after,
        }

    def columns(self) -> tuple[NDArray[Any], ...]:
        """The numbers of each client: examples, norm, cosine, selected."""
        return self.examples, self.norms, self.cosines, self.selected


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """The decision over a closed window."""

    index: int
    first: int
    last: int
    chosen: tuple[int, ...]  # by the selection; round 0 is kept besides
    reference: float  # the loss that the next window is measured against

    def facts(self) -> list[Any]:
        """What the chain covers."""
        return ["window", self.index, self.first, self.last, list(self.chosen), _plain(self.reference)]


@dataclass(frozen=True, slots=True)
class ClosingRecord:
    """Nothing comes after this."""

    rounds: int

    def facts(self) -> list[Any]:
        """What the chain covers."""
        return ["closing", self.rounds]


Record = Settings | RoundRecord | WindowRecord | ClosingRecord


def describe(entry: Record) -> str:
    """An entry's name for people."""
    if isinstance(entry, RoundRecord):
        return f"round {entry.index}"
    if isinstance(entry, WindowRecord):
        return f"window {entry.index}"
    return "charter" if isinstance(entry, Settings) else "closing"


def number(value: float | None) -> float:
    """A stored number, NULL standing for one that is not a number."""
    return float("nan") if value is None else float(value)


def instant_text(when: datetime | None) -> str | None:
    """A time (UTC) as it stands in the ledger: 2026-05-01T12:00:00.000000Z."""
    return None if when is None else when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _plain(value: float) -> float | None:
    return None if isnan(value) else float(value)


def _sha(numbers: NDArray[np.float64]) -> str:
    return hashlib.sha256(np.ascontiguousarray(numbers, "<f8").tobytes()).hexdigest()
