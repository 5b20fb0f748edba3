"""The values that everything else passes around. All are frozen; a change is a new value."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcrab.errors import ConfigError, RecordError

Vector = NDArray[np.float32]
ClientId = str
MOST_DIMENSIONS = 32  # of a tensor, in every version of numpy


def natural(client: ClientId) -> tuple[tuple[bool, int, str], ...]:
    """A key that sorts ids as people count: 2 before 10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", client)
    return tuple((not p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts)


@dataclass(frozen=True, slots=True)
class Field:
    """One named tensor inside the flat vector."""

    name: str
    shape: tuple[int, ...]
    trained: bool = True  # False for a buffer: averaged, never calibrated, no part of any norm
    integer: bool = False  # a counter, such as BatchNorm's; only buffers are integers

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """Which slice of a flat vector is which tensor."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = [f.name for f in self.fields]
        if len(set(names)) != len(names):
            raise ConfigError(f"a layout names each tensor once, got {names}")
        if deep := [f.name for f in self.fields if len(f.shape) > MOST_DIMENSIONS]:
            raise ConfigError(f"tensor {deep[0]!r} has more than {MOST_DIMENSIONS} dimensions")

    @classmethod
    def flat(cls, size: int) -> Layout:
        """The layout of a vector about which nothing more is known."""
        return cls((Field("model", (size,)),))

    @property
    def size(self) -> int:
        """How many numbers the vector has."""
        return sum(f.size for f in self.fields)

    def slices(self) -> dict[str, slice]:
        """The place of each tensor."""
        places, start = {}, 0
        for f in self.fields:
            places[f.name] = slice(start, start + f.size)
            start += f.size
        return places

    def views(self, vector: NDArray[np.float32]) -> Mapping[str, NDArray[np.float32]]:
        """Each tensor as a view into the vector."""
        places = self.slices()
        return {f.name: vector[places[f.name]].reshape(f.shape) for f in self.fields}

    def trained(self) -> tuple[slice, ...]:
        """The stretches of trained numbers, neighbours joined."""
        joined: list[slice] = []
        for f, place in zip(self.fields, self.slices().values(), strict=True):
            if not f.trained or f.size == 0:
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
    """One round's answers, rows sorted by client id."""

    clients: tuple[ClientId, ...]
    vectors: NDArray[np.float32]  # (clients, d): local model minus the model it started from
    weights: NDArray[np.float64]  # examples per client

    def __post_init__(self) -> None:
        vectors, weights = np.asarray(self.vectors), np.asarray(self.weights, np.float64)
        if vectors.ndim != 2 or weights.shape != (len(self.clients),) or len(vectors) != len(self.clients):
            raise RecordError(
                f"updates need one row and one weight a client: got {len(self.clients)} clients, "
                f"vectors of shape {vectors.shape}, weights of shape {weights.shape}"
            )
        object.__setattr__(self, "clients", tuple(self.clients))
        object.__setattr__(self, "vectors", vectors.astype(np.float32, copy=False))
        object.__setattr__(self, "weights", weights)
        if list(self.clients) != sorted(self.clients):
            self._sort()

    def _sort(self) -> None:
        order = sorted(range(len(self.clients)), key=self.clients.__getitem__)
        object.__setattr__(self, "clients", tuple(self.clients[i] for i in order))
        object.__setattr__(self, "vectors", self.vectors[order])
        object.__setattr__(self, "weights", self.weights[order])

    @classmethod
    def of(cls, answers: Mapping[ClientId, tuple[ArrayLike, float]]) -> Updates:
        """From ``{client: (vector, examples)}``."""
        clients = tuple(sorted(answers))
        rows = [np.asarray(answers[c][0], np.float32) for c in clients]
        vectors = np.stack(rows) if rows else np.zeros((0, 0), np.float32)
        return cls(clients, vectors, np.array([answers[c][1] for c in clients], np.float64))

    def only(self, clients: Collection[ClientId]) -> Updates:
        """The updates of these clients alone."""
        rows = [i for i, c in enumerate(self.clients) if c in clients]
        return Updates(tuple(self.clients[i] for i in rows), self.vectors[rows], self.weights[rows])

    def without(self, clients: Collection[ClientId]) -> Updates:
        """The updates of all but these clients."""
        return self.only([c for c in self.clients if c not in clients])


@dataclass(frozen=True, slots=True)
class Round:
    """One round as it happened: the model before it, what the clients sent, what was made of it."""

    index: int
    start: Vector  # M_t
    updates: Updates  # made from M_t
    aggregate: Vector  # G_t; M_{t+1} = M_t + G_t
    loss: float  # of M_{t+1}, on the server's probe data
    divergence: float  # KL(p_t || p_{t+1}) on the probe data
    rejected: tuple[Rejection, ...] = field(default=())  # who was left out before aggregation, and why


class Fleet(Protocol):
    """The clients, wherever they run: one process, Ray, Flower SuperNodes."""

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """Let these clients train from ``model``; their updates, of those that answered."""
        ...
