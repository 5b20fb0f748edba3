"""Small CNNs, one client after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedcrab.simulate import bridge
from fedcrab.simulate.descent import Descent
from fedcrab.simulate.local import LocalTraining, Task, orders

FROM = 16  # examples in a batch: with fewer, transforming the kernels costs more than it saves


class Network(Protocol):
    """A CNN whose weights may lie in memory in an order of its own."""

    @property
    def weights(self) -> Sequence[Tensor]:
        """The weights as they lie in memory, in the order of the module's parameters."""
        ...

    @property
    def as_torch(self) -> Sequence[Tensor]:
        """The same memory, each weight's numbers in the order torch has them."""
        ...

    def gradients(self, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        """Of the mean cross-entropy of a batch, for every weight, as they lie in memory."""
        ...


class Convolution:
    """Trains a CNN; the result is that of the plain loop on the module up to rounding.

    ``for_large`` computes it for clients whose batches have FROM examples or more, if there is such a
    network. Which one a client gets depends on the client alone, so its bits do too.
    """

    together = 1

    def __init__(
        self, network: Network, for_large: Network | None, local: LocalTraining, *, seed: int
    ) -> None:
        self._network, self._for_large = network, for_large or network
        self._local, self._seed = local, seed

    def network_for(self, examples: int) -> Network:
        """What trains a client of so many examples."""
        return self._for_large if min(examples, self._local.batch) >= FROM else self._network

    def train(self, start: Tensor, tasks: Sequence[Task], *, round: int, epochs: int) -> None:
        """Train every task from ``start`` and write local minus start into its row."""
        for task in tasks:
            network = self.network_for(len(task.y))
            bridge.write(network.as_torch, start)
            descent = Descent(network.weights, self._local)
            for order in orders(self._seed, round, task.client, count=len(task.y), epochs=epochs):
                for rows in torch.split(order, self._local.batch):
                    x, y = task.x.index_select(0, rows), task.y.index_select(0, rows)
                    descent.step(network.gradients(x, y))
            torch.sub(bridge.read(network.as_torch), start, out=task.update)
