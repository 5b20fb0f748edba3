"""What all attacks share: who attacks and when, and fleets that wrap a fleet.

:class:`PoisonedDataFleet` trains attackers on poisoned examples. :class:`CraftedFleet` replaces the updates
of attackers by crafted ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId, Fleet, Updates, Vector


@dataclass(frozen=True, slots=True)
class Attackers:
    """The malicious clients. They act together or not at all; while they do not act, they are honest."""

    clients: frozenset[ClientId]
    start: int = 0  # the first round in which they may act
    share: float = 1.0  # of the rounds from there on, drawn one by one: 0 never, 1 always
    seed: int = 0  # of every draw that the attack makes
    rounds: frozenset[int] | None = None  # the only ones in which they may act; None: any

    def __post_init__(self) -> None:
        if isinstance(self.clients, str):
            raise ConfigError(f"attackers are a set of client ids, got the one string {self.clients!r}")
        object.__setattr__(self, "clients", frozenset(self.clients))
        if self.start < 0:
            raise ConfigError(f"start must be round 0 or later, got {self.start}")
        if not 0 <= self.share <= 1:
            raise ConfigError(f"share must be between 0 and 1, got {self.share}")

    def active(self, round: int) -> frozenset[ClientId]:
        """The attackers that act in this round: all or none."""
        if round < self.start or (self.rounds is not None and round not in self.rounds):
            return frozenset()
        if rng_for(self.seed, "attack", round).random() >= self.share:
            return frozenset()
        return self.clients


def rounds_of(told: Sequence[int | str]) -> frozenset[int]:
    """Return the rounds of a schedule such as ``[3, "10-14"]``, ends included."""
    found: set[int] = set()
    for part in told:
        first, dash, last = str(part).partition("-")
        ends = [text.strip() for text in ((first, last) if dash else (first, first))]
        if not all(text.isascii() and text.isdecimal() and len(text) < 7 for text in ends):
            raise ConfigError(f'rounds are such as 30 or "30-34", got {part!r}')
        if int(ends[1]) < int(ends[0]):
            raise ConfigError(f"rounds {part!r} end before they begin")
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(found)


def draw_attackers(pool: Collection[ClientId], fraction: float, seed: int) -> frozenset[ClientId]:
    """Return round(fraction × pool) clients, half to even; the order of the pool does not matter."""
    if not 0 <= fraction <= 1:
        raise ConfigError(f"fraction must be between 0 and 1, got {fraction}")
    ordered = sorted(set(pool))
    drawn = rng_for(seed, "attackers").permutation(len(ordered))[: round(fraction * len(ordered))]
    return frozenset(ordered[i] for i in drawn)


Examples = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Images (n, channels, height, width) or flat features (n, features); labels (n,)."""


@runtime_checkable
class DataFleet(Fleet, Protocol):
    """A fleet that exposes its clients' examples, as only a simulator does."""

    def examples(self, client: ClientId) -> Examples:
        """The examples of this client."""
        ...

    def with_examples(self, replaced: Mapping[ClientId, Examples]) -> DataFleet:
        """The same fleet, these clients training on other examples."""
        ...


@dataclass(frozen=True, slots=True)
class PoisonedDataFleet:
    """Trains on poisoned examples in the rounds in which the attackers act, on honest ones in the others.

    All other attributes (clients, layout) are those of the inner fleet.
    """

    fleet: DataFleet  # everyone honest
    poisoned: DataFleet  # the same fleet, the attackers' examples poisoned
    attackers: Attackers

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """The updates of these clients; with no attacker among them, of the honest fleet."""
        acting = self.attackers.active(round).intersection(clients)
        fleet = self.poisoned if acting else self.fleet
        return fleet.train(model, clients, round=round, epochs=epochs)

    def examples(self, client: ClientId) -> Examples:
        """The examples of this client while it is honest."""
        return self.fleet.examples(client)

    def with_examples(self, replaced: Mapping[ClientId, Examples]) -> PoisonedDataFleet:
        """The same attack, these clients training on these examples in every round, attackers too."""
        return PoisonedDataFleet(
            self.fleet.with_examples(replaced), self.poisoned.with_examples(replaced), self.attackers
        )

    def __getattr__(self, name: str) -> Any:
        return passed_on(self, self.fleet, name)


def poison_examples(
    fleet: DataFleet, attackers: Attackers, poison: Callable[[ClientId, Examples], Examples]
) -> PoisonedDataFleet:
    """Return a fleet in which each attacker trains on ``poison(client, its examples)``."""
    shown = as_data_fleet(fleet)
    replaced = {client: poison(client, shown.examples(client)) for client in sorted(attackers.clients)}
    return PoisonedDataFleet(shown, shown.with_examples(replaced), attackers)


def as_data_fleet(fleet: Fleet) -> DataFleet:
    """The fleet itself, if it exposes its examples; otherwise raises ``ConfigError``."""
    if isinstance(fleet, DataFleet):
        return fleet
    raise ConfigError(
        f"{type(fleet).__name__} does not show its clients' examples, "
        "which backdoor, dba and label_flip replace; give a simulated fleet, or use an attack on updates"
    )


def passed_on(outer: object, inner: object, name: str) -> Any:
    """An attribute of the inner fleet; Python's own protocols (copy, pickle) are not passed on."""
    if name.startswith("__"):
        raise AttributeError(f"{type(outer).__name__} has no attribute {name!r}")
    return getattr(inner, name)


@dataclass(frozen=True, slots=True)
class RoundView:
    """What colluding attackers with full knowledge see in one round."""

    round: int
    model: Vector  # M_t
    honest: Updates  # of the participants that do not attack
    own: Updates  # of the attackers that take part, as the inner fleet answers for them; at least one

    @property
    def seen(self) -> Updates:
        """The honest updates or, in a round without any, the attackers' own."""
        return self.honest if self.honest.clients else self.own


Craft = Callable[[RoundView], NDArray[Any]]
"""What the attackers send: one vector for all of them, or one row for each of ``scene.own``."""


@dataclass(frozen=True, slots=True)
class CraftedFleet:
    """Replaces the rows of the attackers that act and take part; all other rows pass as they are.

    All other attributes (clients, layout) are those of the inner fleet.
    """

    fleet: Fleet
    attackers: Attackers
    craft: Craft

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """The inner fleet's updates with the attackers' rows replaced."""
        updates = self.fleet.train(model, clients, round=round, epochs=epochs)
        acting = self.attackers.active(round).intersection(updates.clients)
        if not acting:
            return updates
        sent = self.craft(RoundView(round, model, updates.without(acting), updates.only(acting)))
        vectors = updates.vectors.copy()
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and for the server to refuse
            vectors[[c in acting for c in updates.clients]] = sent
        return Updates(updates.clients, vectors, updates.weights)

    def examples(self, client: ClientId) -> Examples:
        """The examples of this client, if the inner fleet exposes them."""
        return as_data_fleet(self.fleet).examples(client)

    def with_examples(self, replaced: Mapping[ClientId, Examples]) -> CraftedFleet:
        """The same attack around the inner fleet with these examples."""
        return CraftedFleet(as_data_fleet(self.fleet).with_examples(replaced), self.attackers, self.craft)

    def __getattr__(self, name: str) -> Any:
        return passed_on(self, self.fleet, name)


def mean(updates: Updates) -> NDArray[np.float64]:
    """μ, not weighted: attackers imitate clients, not examples."""
    return np.asarray(updates.vectors.mean(axis=0, dtype=np.float64))


def deviation(updates: Updates) -> NDArray[np.float64]:
    """σ = √(Σ (u − μ)² / n), computed row by row to avoid a float64 copy of all updates."""
    centre = mean(updates)
    total = np.zeros_like(centre)
    for row in updates.vectors:
        total += (row - centre) ** 2
    return np.asarray(np.sqrt(total / len(updates.vectors)))
