"""What all attacks share: who attacks in which rounds, and the fleets that wrap a fleet.

:class:`PoisonedDataFleet` trains attackers on poisoned examples. :class:`CraftedFleet` replaces the updates
of attackers with crafted ones.
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
    share: float = 1.0  # the probability that they act in a round from there on: 0 never, 1 always
    seed: int = 0  # for every draw that the attack makes
    rounds: frozenset[int] | None = None  # the only rounds in which they may act; None: any

    def __post_init__(self) -> None:
        if isinstance(self.clients, str):
            raise ConfigError(f"attackers must be a set of client ids, got the string {self.clients!r}")
        object.__setattr__(self, "clients", frozenset(self.clients))
        if self.start < 0:
            raise ConfigError(f"start must be round 0 or later, got {self.start}")
        if not 0 <= self.share <= 1:
            raise ConfigError(f"share must be between 0 and 1, got {self.share}")

    def active(self, round: int) -> frozenset[ClientId]:
        """Return the attackers that act in this round: all of them or none."""
        if round < self.start or (self.rounds is not None and round not in self.rounds):
            return frozenset()
        if rng_for(self.seed, "attack", round).random() >= self.share:
            return frozenset()
        return self.clients


def parse_rounds(schedule: Sequence[int | str]) -> frozenset[int]:
    """Return the rounds of a schedule such as ``[3, "10-14"]``, with both ends included.

    Raises ``ConfigError`` for an entry that is neither a round nor a range.
    """
    found: set[int] = set()
    for part in schedule:
        first, dash, last = str(part).partition("-")
        ends = [text.strip() for text in ((first, last) if dash else (first, first))]
        if not all(text.isascii() and text.isdecimal() and len(text) < 7 for text in ends):
            raise ConfigError(f'rounds must be numbers or ranges such as 30 or "30-34", got {part!r}')
        if int(ends[1]) < int(ends[0]):
            raise ConfigError(f"rounds {part!r}: the range ends before it begins")
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(found)


def draw_attackers(pool: Collection[ClientId], fraction: float, seed: int) -> frozenset[ClientId]:
    """Return round(fraction × pool) clients, half to even, drawn with ``seed`` in an order-independent way.

    Raises ``ConfigError`` unless ``fraction`` is between 0 and 1.
    """
    if not 0 <= fraction <= 1:
        raise ConfigError(f"fraction must be between 0 and 1, got {fraction}")
    ordered = sorted(set(pool))
    drawn = rng_for(seed, "attackers").permutation(len(ordered))[: round(fraction * len(ordered))]
    return frozenset(ordered[i] for i in drawn)


Examples = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Images (n, channels, height, width) or flat features (n, features); labels (n,)."""


@runtime_checkable
class DataFleet(Fleet, Protocol):
    """A fleet that exposes its clients' examples, which only a simulator can do."""

    def examples(self, client: ClientId) -> Examples:
        """Return the examples of this client."""
        ...

    def with_examples(self, replaced: Mapping[ClientId, Examples]) -> DataFleet:
        """Return the same fleet with other examples for these clients."""
        ...


@dataclass(frozen=True, slots=True)
class PoisonedDataFleet:
    """A fleet whose attackers train on poisoned examples in the rounds in which they act.

    All other attributes (clients, layout) are those of the inner fleet.
    """

    fleet: DataFleet  # everybody is honest
    poisoned: DataFleet  # the same fleet with the attackers' examples poisoned
    attackers: Attackers

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """Return the updates of these clients; from the honest fleet if no attacker is among them."""
        acting = self.attackers.active(round).intersection(clients)
        fleet = self.poisoned if acting else self.fleet
        return fleet.train(model, clients, round=round, epochs=epochs)

    def examples(self, client: ClientId) -> Examples:
        """Return the examples of this client in rounds in which it is honest."""
        return self.fleet.examples(client)

    def with_examples(self, replaced: Mapping[ClientId, Examples]) -> PoisonedDataFleet:
        """Return the same attack with other examples for these clients in every round, attackers included."""
        return PoisonedDataFleet(
            self.fleet.with_examples(replaced), self.poisoned.with_examples(replaced), self.attackers
        )

    def __getattr__(self, name: str) -> Any:
        return inner_attribute(self, self.fleet, name)


def poison_examples(
    fleet: DataFleet, attackers: Attackers, poison: Callable[[ClientId, Examples], Examples]
) -> PoisonedDataFleet:
    """Return a fleet in which each attacker trains on ``poison(client, its examples)``.

    Raises ``ConfigError`` if the fleet does not expose its clients' examples.
    """
    shown = as_data_fleet(fleet)
    replaced = {client: poison(client, shown.examples(client)) for client in sorted(attackers.clients)}
    return PoisonedDataFleet(shown, shown.with_examples(replaced), attackers)


def as_data_fleet(fleet: Fleet) -> DataFleet:
    """Return the fleet itself; raise ``ConfigError`` if it does not expose its clients' examples."""
    if isinstance(fleet, DataFleet):
        return fleet
    raise ConfigError(
        f"{type(fleet).__name__} does not expose its clients' examples, "
        "which backdoor, dba and label_flip replace; pass a simulated fleet, or use an attack on updates"
    )


def inner_attribute(outer: object, inner: object, name: str) -> Any:
    """Return an attribute of the inner fleet, except those of Python's own protocols (copy, pickle)."""
    if name.startswith("__"):
        raise AttributeError(f"{type(outer).__name__} has no attribute {name!r}")
    return getattr(inner, name)


@dataclass(frozen=True, slots=True)
class RoundView:
    """What colluding attackers with full knowledge see in one round."""

    round: int
    model: Vector  # M_t
    honest: Updates  # from the participants that do not attack
    own: Updates  # from the attackers that take part (at least one), as the inner fleet computed them

    @property
    def seen(self) -> Updates:
        """The honest updates, or the attackers' own in a round without honest clients."""
        return self.honest if self.honest.clients else self.own


Craft = Callable[[RoundView], NDArray[Any]]
"""Returns what the attackers send: one vector for all of them, or one row per client of ``scene.own``."""


@dataclass(frozen=True, slots=True)
class CraftedFleet:
    """A fleet that replaces the updates of attackers that act in a round; all others stay the same.

    All other attributes (clients, layout) are those of the inner fleet.
    """

    fleet: Fleet
    attackers: Attackers
    craft: Craft

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """Return the inner fleet's updates with the attackers' rows replaced."""
        updates = self.fleet.train(model, clients, round=round, epochs=epochs)
        acting = self.attackers.active(round).intersection(updates.clients)
        if not acting:
            return updates
        sent = self.craft(RoundView(round, model, updates.without(acting), updates.only(acting)))
        vectors = updates.vectors.copy()
        with np.errstate(over="ignore"):  # values beyond float32 become infinite; the server rejects them
            vectors[[c in acting for c in updates.clients]] = sent
        return Updates(updates.clients, vectors, updates.weights)

    def examples(self, client: ClientId) -> Examples:
        """Return the examples of this client; raise ``ConfigError`` if the fleet does not expose them."""
        return as_data_fleet(self.fleet).examples(client)

    def with_examples(self, replaced: Mapping[ClientId, Examples]) -> CraftedFleet:
        """Return the same attack around the inner fleet with these examples."""
        return CraftedFleet(as_data_fleet(self.fleet).with_examples(replaced), self.attackers, self.craft)

    def __getattr__(self, name: str) -> Any:
        return inner_attribute(self, self.fleet, name)


def mean(updates: Updates) -> NDArray[np.float64]:
    """Return μ, not weighted: attackers imitate clients, not examples."""
    return np.asarray(updates.vectors.mean(axis=0, dtype=np.float64))


def deviation(updates: Updates) -> NDArray[np.float64]:
    """Return σ = √(Σ (u − μ)² / n), computed row by row to avoid a float64 copy of all updates."""
    centre = mean(updates)
    total = np.zeros_like(centre)
    for row in updates.vectors:
        total += (row - centre) ** 2
    return np.asarray(np.sqrt(total / len(updates.vectors)))
