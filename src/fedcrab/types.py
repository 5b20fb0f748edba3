"""The values that the rest of fedcrab passes around. All are frozen; a change makes a new value."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcrab.errors import ConfigError, RecordError, shown

Vector = NDArray[np.float32]
ClientId = str
MOST_DIMENSIONS = 32  # per tensor: the limit of every supported version of numpy


def natural(client: ClientId) -> tuple[tuple[bool, int, str], ...]:
    """Return a sort key that orders numbers inside ids by value: 2 before 10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", client)
    return tuple((not p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts)


@dataclass(frozen=True, slots=True)
class Field:
    """One named tensor inside the flat vector."""

    name: str
    shape: tuple[int, ...]
    trained: bool = True  # False for a buffer: averaged, but never calibrated and not part of any norm
    integer: bool = False  # a counter, such as BatchNorm's; only buffers are integers

    @property
    def size(self) -> int:
        """The number of values in the tensor."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """Says which slice of a flat vector is which tensor."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = [f.name for f in self.fields]
        if len(set(names)) != len(names):
            raise ConfigError(f"tensor names in a layout must be unique, got {names}")
        if deep := [f.name for f in self.fields if len(f.shape) > MOST_DIMENSIONS]:
            raise ConfigError(f"tensor {deep[0]!r} has more than {MOST_DIMENSIONS} dimensions")

    @classmethod
    def flat(cls, size: int) -> Layout:
        """Return the layout of a vector whose tensors are not known."""
        return cls((Field("model", (size,)),))

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(f.size for f in self.fields)

    def slices(self) -> dict[str, slice]:
        """Return the slice of each tensor."""
        places, start = {}, 0
        for f in self.fields:
            places[f.name] = slice(start, start + f.size)
            start += f.size
        return places

    def views(self, vector: NDArray[np.float32]) -> Mapping[str, NDArray[np.float32]]:
        """Return each tensor as a view into the vector."""
        places = self.slices()
        return {f.name: vector[places[f.name]].reshape(f.shape) for f in self.fields}

    def trained(self) -> tuple[slice, ...]:
        """Return the slices of trained parameters; adjacent ones are joined."""
        return self._joined(trained=True)

    def buffers(self) -> tuple[slice, ...]:
        """Return the slices of everything else."""
        return self._joined(trained=False)

    def _joined(self, *, trained: bool) -> tuple[slice, ...]:
        joined: list[slice] = []
        for f, place in zip(self.fields, self.slices().values(), strict=True):
            if f.trained != trained or f.size == 0:
                continue
            if joined and joined[-1].stop == place.start:
                joined[-1] = slice(joined[-1].start, place.stop)
            else:
                joined.append(place)
        return tuple(joined)


@dataclass(frozen=True, slots=True)
class Rejection:
    """A client that was left out of a round, and why."""

    client: ClientId
    reason: str


@dataclass(frozen=True, slots=True)
class Updates:
    """The updates of one round, one row per client, sorted by client id."""

    clients: tuple[ClientId, ...]
    vectors: NDArray[np.float32]  # (clients, d): local model minus the model it started from
    weights: NDArray[np.float64]  # examples per client

    def __post_init__(self) -> None:
        clients, vectors, weights = _ids(self.clients), _rows(self.vectors), _numbers(self.weights)
        if vectors.ndim != 2 or weights.shape != (len(clients),) or len(vectors) != len(clients):
            raise RecordError(
                f"updates need one row and one weight per client: got {len(clients)} clients, "
                f"vectors of shape {vectors.shape}, weights of shape {weights.shape}"
            )
        object.__setattr__(self, "clients", clients)
        object.__setattr__(self, "vectors", vectors)
        object.__setattr__(self, "weights", weights)
        if list(clients) != sorted(clients):
            self._sort()

    def _sort(self) -> None:
        order = sorted(range(len(self.clients)), key=self.clients.__getitem__)
        object.__setattr__(self, "clients", tuple(self.clients[i] for i in order))
        object.__setattr__(self, "vectors", self.vectors[order])
        object.__setattr__(self, "weights", self.weights[order])

    @classmethod
    def of(cls, answers: Mapping[ClientId, tuple[ArrayLike, float]]) -> Updates:
        """Build updates from ``{client: (vector, examples)}``."""
        clients = tuple(sorted(_ids(answers)))
        rows = [_rows(answers[c][0]) for c in clients]
        if len({row.shape for row in rows}) > 1:
            raise RecordError(
                f"all updates must be vectors of the same length, got shapes {shown({r.shape for r in rows})}"
            )
        vectors = np.stack(rows) if rows else np.zeros((0, 0), np.float32)
        return cls(clients, vectors, _numbers([answers[c][1] for c in clients]))

    def only(self, clients: Collection[ClientId]) -> Updates:
        """Return the updates of these clients only."""
        wanted = frozenset(clients)
        rows = [i for i, c in enumerate(self.clients) if c in wanted]
        if len(rows) == len(self.clients):
            return self
        return Updates(tuple(self.clients[i] for i in rows), self.vectors[rows], self.weights[rows])

    def without(self, clients: Collection[ClientId]) -> Updates:
        """Return the updates of all other clients."""
        return self.only(frozenset(self.clients) - frozenset(clients))


def _ids(clients: Iterable[object]) -> tuple[ClientId, ...]:
    """Return the client ids as plain strings."""
    try:
        given = tuple(clients)
    except TypeError as error:
        raise RecordError(f"client ids must be a list of strings, got {shown(clients)}") from error
    if strange := [client for client in given if not isinstance(client, str)]:
        raise RecordError(f"a client id must be a string, got {shown(strange[0])}")
    return tuple(map(str, given))


def _rows(vectors: object) -> NDArray[np.float32]:
    """Return the numbers as float32. Values that do not fit become infinite; screening rejects them later."""
    try:
        given = np.asarray(vectors)
    except Exception as error:  # a caller's __array__ may raise anything
        raise RecordError(f"updates must be arrays of numbers, got {shown(vectors)}") from error
    if given.dtype.kind not in "fiu" and given.size:
        raise RecordError(f"updates must be arrays of numbers, got {shown(vectors)}")
    with np.errstate(over="ignore", invalid="ignore"):
        return given.astype(np.float32, copy=False)


def _numbers(weights: object) -> NDArray[np.float64]:
    try:
        return np.asarray(weights, np.float64)
    except Exception as error:  # as above
        raise RecordError(f"weights must be numbers of examples, got {shown(weights)}") from error


@dataclass(frozen=True, slots=True, eq=False)
class ServerState:
    """What the server needs for the next round besides the model: named arrays and plain values."""

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    values: Mapping[str, Any] = field(default_factory=dict)  # any values that JSON can hold


@dataclass(frozen=True, slots=True)
class Round:
    """One round: the model before it, the clients' updates, and the aggregate."""

    index: int
    start: Vector  # M_t
    updates: Updates  # made from M_t
    aggregate: Vector  # G_t; M_{t+1} = M_t + G_t
    loss: float  # of M_{t+1}, on the server's probe data
    divergence: float  # KL(p_t || p_{t+1}) on the probe data
    rejected: tuple[Rejection, ...] = field(default=())  # left out before aggregation, and why
    began: datetime | None = None  # when the clients were asked; any time zone, stored in UTC
    ended: datetime | None = None  # when M_{t+1} was made; `record` fills in what is missing
    notes: str = ""  # free text, for example what the server sent to the clients
    server: ServerState | None = None  # belongs to M_{t+1}, for example the moments of an optimiser

    def __post_init__(self) -> None:
        for name in ("began", "ended"):
            object.__setattr__(self, name, _in_utc(name, getattr(self, name)))
        if self.began and self.ended and self.ended < self.began:
            raise RecordError(f"a round cannot end ({self.ended}) before it began ({self.began})")


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def _in_utc(name: str, when: object) -> datetime | None:
    if when is None:
        return None
    if not isinstance(when, datetime) or when.utcoffset() is None:
        raise RecordError(f"{name} must be a datetime with a time zone, got {str(when)[:40]!r}")
    try:
        there = when.astimezone(UTC)
    except OverflowError as error:
        raise RecordError(f"{name} is outside the range of dates, got {str(when)[:40]!r}") from error
    return datetime.combine(there.date(), there.time(), UTC)


class Fleet(Protocol):
    """The clients, wherever they run: in one process, on Ray, or as Flower SuperNodes."""

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """Train these clients from ``model`` and return the updates of those that answered."""
        ...
