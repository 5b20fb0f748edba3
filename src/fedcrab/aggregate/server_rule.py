"""The server's own rule: it sees whole models, knows the round, and has a state that lasts between rounds.

The other rules are functions of one round's updates. A server may also aggregate with an optimiser (FedAdam,
momentum), clip by an adaptive norm or add noise. The adapter of an engine passes such a server to a recovery
as a ``ServerRule``, so that the recovery aggregates as the training did.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.types import ServerState, Updates, Vector


class ServerRule(ABC):
    """Can be passed to a recovery method instead of a rule; it treats buffers itself."""

    name: str = "server"
    fewest: int = 1  # the number of answers that it needs at least

    @abstractmethod
    def step(self, model: Vector, updates: Updates, *, round: int) -> Vector | str:
        """Return G_t for updates made from ``model``, or the reason why there is none."""

    @abstractmethod
    def state(self) -> ServerState | None:
        """Return the state for the next round; None if there is none."""

    @abstractmethod
    def restore(self, state: ServerState | None, *, round: int) -> None:
        """Restore the state before a round; None is the state of a new server."""

    def __call__(self, _matrix: NDArray[np.float32], _weights: NDArray[np.float64]) -> NoReturn:
        """Raise ``ConfigError``: the step depends on the model and the round, so use :meth:`step`."""
        raise ConfigError(f"{self.name} aggregates with its own state; only a recovery can use it")
