"""Make a fleet from a function, so that the clients of your own training loop can be recovered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fedcrab.errors import ConfigError
from fedcrab.state_dicts import flatten, state_layout, unflatten
from fedcrab.types import ClientId, Fleet, Updates, Vector

LocalTrain = Callable[..., tuple[Any, float]]  # (state dict, client, round) -> (local model, examples)


def fleet(train: LocalTrain, like: Any) -> Fleet:
    """Return a fleet that calls ``train(state_dict, client, round) -> (state_dict, examples)`` per client.

    ``like`` is a torch module or a state dict of the model. ``train`` may also take ``epochs``, the number of
    local epochs: FedEraser asks for fewer than the training used.
    """
    return FunctionFleet(train, like)


class FunctionFleet:
    """Calls a function for each client's local model."""

    def __init__(self, train: LocalTrain, like: Any) -> None:
        self._train, self._like, self._layout = train, like, state_layout(like)
        self._takes_epochs = "epochs" in inspect.signature(train).parameters

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """Return each client's local model minus the model that it started from."""
        if epochs is not None and not self._takes_epochs:
            raise ConfigError(
                "this method asks for fewer local epochs; let train take epochs, or use another method"
            )
        more = {"epochs": epochs} if self._takes_epochs else {}
        found = {}
        for client in clients:
            local, examples = self._train(unflatten(model, self._like), client, round, **more)
            found[client] = flatten(local, self._layout) - model, examples
        return Updates.of(found)
