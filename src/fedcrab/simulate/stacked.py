"""Linear models and MLPs with many clients at once, without autograd.

Clients are stacked by falling number of examples, so that at every step those with a whole batch are
neighbours, and those with a smaller last batch follow. The arithmetic of a step is in `stack`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from fedcrab.simulate.batches import Batches
from fedcrab.simulate.features import Narrowing, used_features
from fedcrab.simulate.local import LocalTraining, Task, orders
from fedcrab.simulate.stack import Layer, Stack

STACK_NUMBERS = 1 << 20  # in the models of one stack: 2 MB, about what stays in a core's caches
LARGEST_STACK = 64


def layers_of(module: nn.Module) -> list[Layer] | None:
    """The layers of a module that is linear layers with ReLU between, else None."""
    if not isinstance(module, nn.Sequential) or any(not p.requires_grad for p in module.parameters()):
        return None
    steps = list(module)
    if steps and isinstance(steps[0], nn.Flatten) and (steps[0].start_dim, steps[0].end_dim) == (1, -1):
        del steps[0]
    if [type(step) for step in steps] != [nn.Linear, *[nn.ReLU, nn.Linear] * (len(steps) // 2)]:
        return None
    return _placed([step for step in steps if isinstance(step, nn.Linear)])


def _placed(linears: list[nn.Linear]) -> list[Layer]:
    layers, place = [], 0
    for linear in linears:
        bias = place + linear.in_features * linear.out_features
        has_bias = linear.bias is not None
        layers.append(Layer(linear.in_features, linear.out_features, place, bias if has_bias else None))
        place = bias + has_bias * linear.out_features
    return layers


@dataclass(frozen=True, slots=True)
class _Learner:
    """A task, and the features that its examples use."""

    task: Task
    x: Tensor
    features: Tensor

    @classmethod
    def of(cls, task: Task, *, narrow: bool) -> _Learner:
        """With the used features where the weights of others stay as they are, else with all.

        They do not under weight decay, nor where one is infinite: 0 times it is not 0.
        """
        x = task.x.reshape(len(task.y), -1)
        return cls(task, x, used_features(x) if narrow else torch.arange(x.shape[1]))


def _stacks(learners: Sequence[_Learner], largest: int) -> Iterator[list[_Learner]]:
    """Those with as many features, by falling number of examples, in stacks of at most ``largest``."""
    ordered = sorted(learners, key=lambda each: (len(each.features), -len(each.task.y)))
    for _, alike in groupby(ordered, key=lambda each: len(each.features)):
        together = list(alike)
        for first in range(0, len(together), largest):
            yield together[first : first + largest]


class Stacked:
    """Trains clients in stacks of a few; the result of each is that of the plain loop up to rounding."""

    def __init__(self, layers: list[Layer], local: LocalTraining, *, seed: int) -> None:
        self._layers, self._local, self._seed = layers, local, seed
        self._room = torch.empty(0)

    @property
    def together(self) -> int:
        """As many models as stay in cache."""
        return max(1, min(LARGEST_STACK, STACK_NUMBERS // self._layers[-1].after))

    def train(self, start: Tensor, tasks: Sequence[Task], *, round: int, epochs: int) -> None:
        """Train every task from ``start`` and write local minus start into its row."""
        narrow = not self._local.weight_decay and bool(start.isfinite().all())
        for stack in _stacks([_Learner.of(task, narrow=narrow) for task in tasks], self.together):
            self._train_stack(start, stack, round, epochs)

    def _train_stack(self, start: Tensor, learners: Sequence[_Learner], round: int, epochs: int) -> None:
        narrowing = Narrowing(self._layers, len(learners[0].features))
        x, labels = self._examples(narrowing, learners), [each.task.y for each in learners]
        batches = Batches(x, labels, batch=self._local.batch)
        starts = [narrowing.narrow(start, each.features) for each in learners]
        stack = Stack(narrowing.layers, self._local, starts, batch=batches.batch)
        drawn = [
            orders(self._seed, round, each.task.client, count=len(each.task.y), epochs=epochs)
            for each in learners
        ]
        for order in zip(*drawn, strict=True):
            batches.shuffle(order)
            _epoch(stack, batches)
        for place, each in enumerate(learners):
            narrowing.widen(stack.update(place), each.features, each.task.update)

    def _examples(self, narrowing: Narrowing, learners: Sequence[_Learner]) -> Tensor:
        """Those of all learners, in room that is used again: fresh memory costs more than the copying."""
        rows = sum(len(each.x) for each in learners)
        if self._room.numel() < rows * narrowing.width:
            self._room = torch.empty(rows * narrowing.width)
        x, after = self._room[: rows * narrowing.width].view(rows, -1), 0
        for each in learners:
            before, after = after, after + len(each.x)
            narrowing.examples(each.x, each.features, x[before:after])
        return x


def _epoch(stack: Stack, batches: Batches) -> None:
    for begin in range(0, batches.counts[0], batches.batch):
        for first, after, rows in alike([n - begin for n in batches.counts], batches.batch):
            clients = slice(first, after)
            stack.step(clients, *batches.gather(clients, slice(begin, begin + rows)))


def alike(left: Sequence[int], batch: int) -> Iterator[tuple[int, int, int]]:
    """Neighbours whose next batches have the same size, as (first, after, size).

    ``left``, the examples that each client has still to see in this epoch, falls from client to client.
    """
    first = 0
    while first < len(left) and left[first] > 0:
        rows = min(left[first], batch)
        after = first + 1
        while after < len(left) and min(left[after], batch) == rows:
            after += 1
        yield first, after, rows
        first = after
