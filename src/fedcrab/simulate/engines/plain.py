"""The plain loop: any module, one client after the other, with autograd.

SGD works on a list of tensors, with a few fused calls per step and no optimiser object. The arithmetic is
that of ``torch.optim.SGD``, whose import alone costs a worker a second or two.

This file also has the settings of local training, the batches, and the interface of an engine. The engines
do the same arithmetic: ``plain`` for any module, ``mlp`` for linear layers, ``cnn`` and ``cnn_compiled`` for
small CNNs. Each client's result depends only on (seed, round, client, start, its examples).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.simulate.models import read, tensors, write
from fedcrab.types import ClientId


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """The SGD settings of a client: g + weight_decay·w, with momentum, times the learning rate."""

    learning_rate: float = 0.005
    batch: int = 64  # the last batch of an epoch may be smaller; none is dropped
    epochs: int = 5
    momentum: float = 0.0  # 0 is plain SGD; reset in every round
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.learning_rate < float("inf"):
            raise ConfigError(f"learning_rate must be 0 or more and finite, got {self.learning_rate}")
        if self.batch < 1 or self.epochs < 0:
            raise ConfigError(
                f"batch must be 1 or more and epochs 0 or more, got {self.batch}, {self.epochs}"
            )
        if not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < float("inf"):
            raise ConfigError(
                "momentum must be 0 or more and under 1, weight_decay 0 or more, "
                f"got {self.momentum}, {self.weight_decay}"
            )


@dataclass(frozen=True, slots=True)
class Task:
    """One client's work: its examples, and the row for its update."""

    client: ClientId
    x: Tensor
    y: Tensor
    update: Tensor
    held: Hashable = None  # identifies examples that never change, so that data made from them can be cached


class Engine(Protocol):
    """A way to train clients."""

    @property
    def together(self) -> int:
        """How many clients should be trained in one call; 1 if there is no gain."""
        ...

    def train(self, start: Tensor, tasks: Sequence[Task], *, round: int, epochs: int) -> None:
        """Train every task from ``start`` and write local minus start into its row."""
        ...


def orders(seed: int, round: int, client: ClientId, *, count: int, epochs: int) -> Iterator[Tensor]:
    """Yield the order of a client's examples in each epoch of a round; batches are consecutive pieces."""
    rng = rng_for(seed, "batches", round, client)
    for _ in range(epochs):
        yield torch.from_numpy(rng.permutation(count))


class Sgd:
    """The descent of one client in one round."""

    def __init__(self, parameters: Sequence[Tensor], local: LocalTraining) -> None:
        self._parameters, self._local = [p.detach() for p in parameters], local
        self._velocities = [torch.zeros_like(p) for p in self._parameters] if local.momentum else []

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Step: v ← momentum·v + g + decay·w, then w ← w − lr·v; a tensor without gradient stays the same."""
        local = self._local
        used = [place for place, gradient in enumerate(gradients) if gradient is not None]
        parameters = [self._parameters[place] for place in used]
        steps = [gradient for gradient in gradients if gradient is not None]
        if local.weight_decay:
            steps = list(torch._foreach_add(steps, parameters, alpha=local.weight_decay))
        if local.momentum:
            velocities = [self._velocities[place] for place in used]
            torch._foreach_mul_(velocities, local.momentum)
            torch._foreach_add_(velocities, steps)
            steps = velocities
        torch._foreach_add_(parameters, steps, alpha=-local.learning_rate)


class PlainEngine:
    """The reference for every other engine. ``arranged`` puts a batch into the module's memory format."""

    together = 1

    def __init__(
        self,
        module: nn.Module,
        local: LocalTraining,
        *,
        seed: int,
        device: str = "cpu",
        arranged: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._module, self._local, self._seed = module.to(device), local, seed
        self._device, self._arranged = torch.device(device), arranged
        self._tensors = list(tensors(module).values())
        self._parameters = [p for p in module.parameters() if p.requires_grad]

    def train(self, start: Tensor, tasks: Sequence[Task], *, round: int, epochs: int) -> None:
        """Train every task from ``start`` and write local minus start into its row."""
        self._module.train()
        with torch.random.fork_rng(devices=[]):
            for task in tasks:
                self._one(start, task, round, epochs)

    def _one(self, start: Tensor, task: Task, round: int, epochs: int) -> None:
        self._seed_draws(round, task.client)
        write(self._tensors, start)
        descent = Sgd(self._parameters, self._local)
        x, y = task.x.to(self._device), task.y.to(self._device)
        for order in orders(self._seed, round, task.client, count=len(task.y), epochs=epochs):
            for rows in torch.split(order.to(self._device), self._local.batch):
                descent.step(self._gradients(x.index_select(0, rows), y.index_select(0, rows)))
        torch.sub(read(self._tensors).cpu(), start, out=task.update)

    def _seed_draws(self, round: int, client: ClientId) -> None:
        """Seed torch's generators for this device and the CPU, for dropout and the like."""
        seed = int(rng_for(self._seed, "module", round, client).integers(2**62))
        torch.default_generator.manual_seed(seed)
        if self._device.type != "cpu":
            torch.manual_seed(seed)

    def _gradients(self, x: Tensor, y: Tensor) -> Sequence[Tensor | None]:
        loss = nn.functional.cross_entropy(self._module(self._arranged(x) if self._arranged else x), y)
        return torch.autograd.grad(loss, self._parameters, allow_unused=True)
