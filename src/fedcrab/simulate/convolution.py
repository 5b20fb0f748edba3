"""Small CNNs, one client after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedcrab.simulate import bridge
from fedcrab.simulate.descent import Descent
from fedcrab.simulate.local import LocalTraining, Task, orders


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
    """Trains a network; the result is that of the plain loop on the module up to rounding."""

    together = 1

    def __init__(self, network: Network, local: LocalTraining, *, seed: int) -> None:
        self.network, self._local, self._seed = network, local, seed

    def train(self, start: Tensor, tasks: Sequence[Task], *, round: int, epochs: int) -> None:
        """Train every task from ``start`` and write local minus start into its row."""
        for task in tasks:
            bridge.write(self.network.as_torch, start)
            descent = Descent(self.network.weights, self._local)
            for order in orders(self._seed, round, task.client, count=len(task.y), epochs=epochs):
                for rows in torch.split(order, self._local.batch):
                    x, y = task.x.index_select(0, rows), task.y.index_select(0, rows)
                    descent.step(self.network.gradients(x, y))
            torch.sub(bridge.read(self.network.as_torch), start, out=task.update)
