"""A fleet around a fleet in which attackers send crafted updates instead of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.attackers import Attackers
from fedcrab.attack.data_fleet import Examples, as_data_fleet, passed_on
from fedcrab.types import ClientId, Fleet, Updates, Vector


@dataclass(frozen=True, slots=True)
class Scene:
    """What colluding attackers with full knowledge see of one round."""

    round: int
    model: Vector  # M_t
    honest: Updates  # of the participants that do not attack
    own: Updates  # of the attackers that take part, as the inner fleet answers for them; at least one

    @property
    def seen(self) -> Updates:
        """The updates to hide among: the honest ones or, in a round without any, the attackers' own."""
        return self.honest if self.honest.clients else self.own


Craft = Callable[[Scene], NDArray[Any]]
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
        sent = self.craft(Scene(round, model, updates.without(acting), updates.only(acting)))
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
