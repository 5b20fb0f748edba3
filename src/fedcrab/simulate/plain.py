"""The plain loop: any module, one client after the other, with autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedcrab.seeds import rng_for
from fedcrab.simulate import bridge
from fedcrab.simulate.descent import Descent
from fedcrab.simulate.local import LocalTraining, Task, orders


class PlainLoop:
    """What every other engine must equal."""

    together = 1

    def __init__(self, module: nn.Module, local: LocalTraining, *, seed: int) -> None:
        self._module, self._local, self._seed = module, local, seed
        self._tensors = list(bridge.tensors(module).values())
        self._parameters = [p for p in module.parameters() if p.requires_grad]

    def train(self, start: Tensor, tasks: Sequence[Task], *, round: int, epochs: int) -> None:
        """Train every task from ``start`` and write local minus start into its row."""
        self._module.train()
        with torch.random.fork_rng(devices=[]):
            for task in tasks:
                self._one(start, task, round, epochs)

    def _one(self, start: Tensor, task: Task, round: int, epochs: int) -> None:
        draws = rng_for(self._seed, "module", round, task.client)  # for dropout and the like
        torch.default_generator.manual_seed(int(draws.integers(2**62)))
        bridge.write(self._tensors, start)
        descent = Descent(self._parameters, self._local)
        for order in orders(self._seed, round, task.client, count=len(task.y), epochs=epochs):
            for rows in torch.split(order, self._local.batch):
                descent.step(self._gradients(task.x.index_select(0, rows), task.y.index_select(0, rows)))
        torch.sub(bridge.read(self._tensors), start, out=task.update)

    def _gradients(self, x: Tensor, y: Tensor) -> Sequence[Tensor | None]:
        loss = nn.functional.cross_entropy(self._module(x), y)
        return torch.autograd.grad(loss, self._parameters, allow_unused=True)
