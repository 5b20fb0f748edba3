"""A fleet whose examples can be replaced, and the fleet around it whose attackers train on poisoned ones.

Who attacks, and when.

A fleet around a fleet in which attackers send crafted updates instead of their own.

The coordinate-wise mean and deviation of updates, in float64.
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
    """The malicious clients. They act together or not at all; when they do not act they are honest."""

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
    """The rounds of a schedule such as ``[3, "10-14"]``, ends included."""
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
    """round(fraction × pool) clients, half to even; the order of the pool does not matter."""
    if not 0 <= fraction <= 1:
        raise ConfigError(f"fraction must be between 0 and 1, got {fraction}")
    ordered = sorted(set(pool))
    drawn = rng_for(seed, "attackers").permutation(len(ordered))[: round(fraction * len(ordered))]
    return frozenset(ordered[i] for i in drawn)


Examples = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Images (n, channels, height, width) or flat features (n, features); labels (n,)."""


@runtime_checkable
class DataFleet(Fleet, Protocol):
    """A fleet that shows its clients' examples; only a simulator does."""

    def examples(self, client: ClientId) -> Examples:
        """What this client trains on."""
        ...

    def with_examples(self, replaced: Mapping[ClientId, Examples]) -> DataFleet:
        """The same fleet, these clients training on other examples."""
        ...


@dataclass(frozen=True, slots=True)
class PoisonedDataFleet:
    """Trains on poisoned examples in the rounds in which the attackers act, on honest ones in the others.

    Whatever else the inner fleet can be asked (its clients, its layout) is asked of it.
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
        """What this client trains on while it is honest."""
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
    """The fleet in which each attacker trains on ``poison(client, its examples)``."""
    shown = as_data_fleet(fleet)
    replaced = {client: poison(client, shown.examples(client)) for client in sorted(attackers.clients)}
    return PoisonedDataFleet(shown, shown.with_examples(replaced), attackers)


def as_data_fleet(fleet: Fleet) -> DataFleet:
    """The fleet itself, if it shows its examples."""
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
    """What colluding attackers with full knowledge see of one round."""

    round: int
    model: Vector  # M_t
    honest: Updates  # of the participants that do not attack
    own: Updates  # of the attackers that take part, as the inner fleet answers for them; at least one

    @property
    def seen(self) -> Updates:
        """The updates to hide among: the honest ones or, in a round without any, the attackers' own."""
        return self.honest if self.honest.clients else self.own


Craft = Callable[[RoundView], NDArray[Any]]
"""What the attackers send: one vector for all of them, or one row for each of ``scene.own``."""


@dataclass(frozen=True, slots=True)
class CraftedFleet:
    """Replaces the rows of the attackers that act and take part; all other rows pass as they are.

    Whatever else the inner fleet can be asked (its clients, its layout) is asked of it.
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
        """What this client trains on, if the inner fleet shows it."""
        return as_data_fleet(self.fleet).examples(client)

    def with_examples(self, replaced: Mapping[ClientId, Examples]) -> CraftedFleet:
        """The same attack around the inner fleet with these examples."""
        return CraftedFleet(as_data_fleet(self.fleet).with_examples(replaced), self.attackers, self.craft)

    def __getattr__(self, name: str) -> Any:
        return passed_on(self, self.fleet, name)


def mean(updates: Updates) -> NDArray[np.float64]:
    """μ: plain, not weighted; attackers imitate clients, not examples."""
    return np.asarray(updates.vectors.mean(axis=0, dtype=np.float64))


def deviation(updates: Updates) -> NDArray[np.float64]:
    """σ = √(Σ (u − μ)² / n), row by row so that no float64 copy of all updates is made."""
    centre = mean(updates)
    total = np.zeros_like(centre)
    for row in updates.vectors:
        total += (row - centre) ** 2
    return np.asarray(np.sqrt(total / len(updates.vectors)))
