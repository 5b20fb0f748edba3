"""A rule that is the server's own: it sees whole models, knows the round, and has a state between rounds.

The other rules are functions of one round's updates. A server that aggregates with an optimiser (FedAdam,
momentum), clips by an adapted norm or adds noise is more than that. An engine's adapter hands it to a
recovery as one of these, so that recovery aggregates as the training did.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.types import ServerState, Updates, Vector


class ServerRule(ABC):
    """Passed wherever a rule is taken by a recovery method; it decides about buffers too."""

    name: str = "server"
    fewest: int = 1  # answers that it needs to make something of them

    @abstractmethod
    def step(self, model: Vector, updates: Updates, *, round: int) -> Vector | str:
        """G_t for updates made from ``model``; or why nothing comes of them."""

    @abstractmethod
    def state(self) -> ServerState | None:
        """What it keeps for the next round; None where that is nothing."""

    @abstractmethod
    def restore(self, state: ServerState | None, *, round: int) -> None:
        """Stand where the server stood before a round; None is the state of a server that was just made."""

    def __call__(self, _matrix: NDArray[np.float32], _weights: NDArray[np.float64]) -> NoReturn:
        """Refused: what it makes of updates depends on the model and the round."""
        raise ConfigError(f"{self.name} aggregates with a state of its own; only a recovery can use it")
