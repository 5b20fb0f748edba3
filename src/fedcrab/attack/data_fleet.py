"""A fleet whose examples can be replaced, and the fleet around it whose attackers train on poisoned ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.attackers import Attackers
from fedcrab.errors import ConfigError
from fedcrab.types import ClientId, Fleet, Updates, Vector

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
