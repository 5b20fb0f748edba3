"""Linear models and MLPs with many clients at once, without autograd.

Clients are stacked by falling number of examples, so that at every step those with a whole batch are
neighbours, and those with a smaller last batch follow. The arithmetic of a step is in `stack`; where it is
less work, the first layer is trained in its dual form (`dual_layer`).

The examples of the clients of a stack, and their batches, all gathered by one call.

A stack of clients trained as the layers are written: every layer's weight moves with every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from fedcrab.simulate.engines.mlp_dual import DualTraining, StackMember, dual_is_faster, epoch_steps
from fedcrab.simulate.engines.mlp_step import (
    ClientCache,
    LinearLayer,
    Stack,
    UsedFeatures,
    Workspace,
    used_features,
)
from fedcrab.simulate.engines.plain import LocalTraining, Task, orders
from fedcrab.simulate.models import only_plain_layers


class Batches:
    """Each client's examples follow those of the client before it, which has as many or more.

    A row of ``x`` is a whole number of cache lines, so that every client's batch begins on one.
    """

    def __init__(self, x: Tensor, labels: Sequence[Tensor], *, batch: int) -> None:
        self.counts = [len(y) for y in labels]
        self.batch = min(batch, self.counts[0])
        self._x, self._y, self._begins = x, torch.cat(list(labels)), begins(self.counts)
        self._order = torch.zeros(len(labels), self.counts[0], dtype=torch.int64)
        self._labels = self._order[:, :, None]
        self._room = torch.empty(len(labels) * self.batch, x.shape[1])

    def shuffle(self, orders: Sequence[Tensor]) -> None:
        """Begin an epoch, in which each client sees its examples in this order."""
        for row, begin, order in zip(self._order, self._begins, orders, strict=True):
            torch.add(order, begin, out=row[: len(order)])
        self._labels = self._y[self._order][:, :, None]

    def gather(self, clients: slice, rows: slice) -> tuple[Tensor, Tensor]:
        """These rows of these clients in the order of the epoch; the next call overwrites this one's x."""
        order = self._order[clients, rows].reshape(-1)
        x = self._room[: len(order)]
        torch.index_select(self._x, 0, order, out=x)
        return x.view(clients.stop - clients.start, -1, x.shape[1]), self._labels[clients, rows]


def begins(counts: Sequence[int]) -> list[int]:
    """Where each client with this many examples begins."""
    return [sum(counts[:place]) for place in range(len(counts))]


class PrimalTraining:
    """Trains one stack after the other."""

    def __init__(self, layers: list[LinearLayer], local: LocalTraining) -> None:
        self._layers, self._local = layers, local
        self._room = Workspace()

    def train(
        self, start: Tensor, learners: Sequence[StackMember], drawn: Sequence[Sequence[Tensor]]
    ) -> None:
        """Train these from ``start`` with the drawn orders of their examples; write local minus start."""
        narrowing = UsedFeatures(self._layers, len(learners[0].features))
        x, labels = self._examples(narrowing, learners), [each.task.y for each in learners]
        batches = Batches(x, labels, batch=self._local.batch)
        starts = [narrowing.narrow(start, each.features) for each in learners]
        stack = Stack(narrowing.layers, self._local, starts, batch=batches.batch)
        for order in zip(*drawn, strict=True):
            batches.shuffle(order)
            for clients, rows in epoch_steps(batches.counts, batches.batch):
                stack.step(clients, *batches.gather(clients, rows))
        for place, each in enumerate(learners):
            narrowing.widen(stack.update(place), each.features, each.task.update)

    def _examples(self, narrowing: UsedFeatures, learners: Sequence[StackMember]) -> Tensor:
        """Those of all learners."""
        (x,), after = self._room.lend((sum(each.count for each in learners), narrowing.width)), 0
        for each in learners:
            before, after = after, after + len(each.x)
            narrowing.examples(each.x, each.features, x[before:after])
        return x


KNOWN = (nn.Flatten, nn.Linear, nn.ReLU)
STACK_NUMBERS = 1 << 20  # in the models of one stack: 2 MB, about what stays in a core's caches
LARGEST_STACK = 64


def layers_of(module: nn.Module) -> list[LinearLayer] | None:
    """The layers of a module that is linear layers with ReLU between, else None."""
    if not only_plain_layers(module, KNOWN):
        return None
    steps = list(module)
    if steps and isinstance(steps[0], nn.Flatten) and (steps[0].start_dim, steps[0].end_dim) == (1, -1):
        del steps[0]
    if [type(step) for step in steps] != [nn.Linear, *[nn.ReLU, nn.Linear] * (len(steps) // 2)]:
        return None
    return _placed([step for step in steps if isinstance(step, nn.Linear)])


def _placed(linears: list[nn.Linear]) -> list[LinearLayer]:
    layers, place = [], 0
    for linear in linears:
        bias = place + linear.in_features * linear.out_features
        has_bias = linear.bias is not None
        layers.append(LinearLayer(linear.in_features, linear.out_features, place, bias if has_bias else None))
        place = bias + has_bias * linear.out_features
    return layers


class MlpEngine:
    """Trains clients in stacks of a few; the result of each is that of the plain loop up to rounding."""

    def __init__(
        self, layers: list[LinearLayer], local: LocalTraining, *, seed: int, cache_bytes: int
    ) -> None:
        self._layers, self._local, self._seed = layers, local, seed
        self._features = ClientCache(cache_bytes // 8)
        self._primal = PrimalTraining(layers, local)
        self._dual = DualTraining(layers, local, cache_bytes=cache_bytes * 7 // 8)

    @property
    def together(self) -> int:
        """As many models as stay in cache."""
        return max(1, min(LARGEST_STACK, STACK_NUMBERS // self._layers[-1].after))

    def train(self, start: Tensor, tasks: Sequence[Task], *, round: int, epochs: int) -> None:
        """Train every task from ``start`` and write local minus start into its row."""
        finite = bool(start.isfinite().all())
        learners = [self._learner(task, finite=finite, epochs=epochs) for task in tasks]
        for stack in _stacks(learners, self._largest):
            drawn = [
                list(orders(self._seed, round, each.task.client, count=each.count, epochs=epochs))
                for each in stack
            ]
            (self._dual if stack[0].dual else self._primal).train(start, stack, drawn)

    def _largest(self, columns: int) -> int:
        """How many clients with kernels of this width are stacked, at most; those of 0 have none."""
        return min(LARGEST_STACK, self._dual.together(columns)) if columns else self.together

    def _learner(self, task: Task, *, finite: bool, epochs: int) -> StackMember:
        """With the used features where the weights of others stay as they are, else with all.

        They do not under weight decay, nor where one is infinite: 0 times it is not 0.
        """
        x = task.x.reshape(len(task.y), -1)
        if self._local.weight_decay or not finite:
            return StackMember(task, x, torch.arange(x.shape[1]), dual=False)
        features = self._features.get(task.held, lambda: used_features(x))
        dual = dual_is_faster(
            self._layers, self._local, examples=len(x), features=len(features), epochs=epochs
        )
        return StackMember(task, x, features, dual)


def _stacks(learners: Sequence[StackMember], largest: Callable[[int], int]) -> Iterator[list[StackMember]]:
    """Those of one kind, by falling number of examples, in stacks of as many as each kind may have."""
    ordered = sorted(learners, key=lambda each: (each.kind, -each.count))
    for (columns, _), alike in groupby(ordered, key=lambda each: each.kind):
        together = list(alike)
        for first in range(0, len(together), largest(columns)):
            yield together[first : first + largest(columns)]
