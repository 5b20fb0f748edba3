"""Linear models and MLPs: trains many clients at once, without autograd.

Clients are stacked by falling number of examples. So at every step those with a whole batch are neighbours,
and those with a smaller last batch follow. ``mlp_step`` has the arithmetic of a step. One call gathers the
batches of all clients of a stack.

Plain SGD is faster by compiled kernels (``mlp_compiled``), where the package has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from fedcrab.simulate.engines.client_cache import ClientCache
from fedcrab.simulate.engines.mlp_step import (
    LinearLayer,
    Stack,
    UsedFeatures,
    Workspace,
    used_features,
)
from fedcrab.simulate.engines.plain import LocalTraining, Task, orders
from fedcrab.simulate.models import only_plain_layers


class Batches:
    """The examples of a stack's clients, each in the order of the client's first epoch.

    So the batches of that epoch are contiguous, and only later ones are gathered. A row of ``x`` is a whole
    number of cache lines, so that every batch starts on one.
    """

    def __init__(
        self,
        examples: Sequence[Tensor],
        labels: Sequence[Tensor],
        first: Sequence[Tensor],
        *,
        batch: int,
        room: Workspace,
    ) -> None:
        self.counts = [len(y) for y in labels]
        clients, most, width = len(labels), self.counts[0], examples[0].shape[1]
        self.batch = min(batch, most)
        self._x, self._room = room.lend((clients, most, width), (clients * self.batch, width))
        self._y, self._ranks, self._places = (torch.zeros(clients, most, dtype=torch.int64) for _ in range(3))
        for place, (x, y, order) in enumerate(zip(examples, labels, first, strict=True)):
            torch.index_select(x, 0, order, out=self._x[place, : len(y)])
            torch.index_select(y, 0, order, out=self._y[place, : len(y)])
            self._ranks[place, order] = torch.arange(place * most, place * most + len(y))
        self._shuffled = self._y[:, :, None]

    def first(self, clients: slice, rows: slice) -> tuple[Tensor, Tensor]:
        """Return these rows of these clients in the order of the first epoch."""
        return self._x[clients, rows], self._y[clients, rows, None]

    def shuffle(self, orders: Sequence[Tensor]) -> None:
        """Start a later epoch, in which each client sees its examples in this order."""
        for place, order in enumerate(orders):
            torch.index_select(self._ranks[place], 0, order, out=self._places[place, : len(order)])
        self._shuffled = self._y.view(-1)[self._places][:, :, None]

    def gather(self, clients: slice, rows: slice) -> tuple[Tensor, Tensor]:
        """Return these rows of these clients in the order of the epoch; the next call overwrites x."""
        places = self._places[clients, rows].reshape(-1)
        x = self._room[: len(places)]
        torch.index_select(self._x.view(-1, x.shape[1]), 0, places, out=x)
        return x.view(clients.stop - clients.start, -1, x.shape[1]), self._shuffled[clients, rows]


@dataclass(frozen=True, slots=True)
class StackMember:
    """A task, and the features that its examples use. Members with as many features can be stacked."""

    task: Task
    x: Tensor
    features: Tensor

    @property
    def count(self) -> int:
        """The number of examples."""
        return len(self.x)


def narrowed(narrowing: UsedFeatures, learner: StackMember, kept: ClientCache[Tensor]) -> Tensor:
    """Return the examples of a member with only the features that they use."""
    if learner.x.shape[1] == narrowing.width == len(learner.features):
        return learner.x

    def make() -> Tensor:
        x = learner.x.new_empty(learner.count, narrowing.width)
        narrowing.examples(learner.x, learner.features, x)
        return x

    return kept.get(learner.task.held, make)


def epoch_steps(counts: Sequence[int], batch: int) -> Iterator[tuple[slice, slice]]:
    """Yield the steps of an epoch: which clients, and which of their examples; ``counts`` falls."""
    for begin in range(0, counts[0], batch):
        for first, after, rows in equal_batches([count - begin for count in counts], batch):
            yield slice(first, after), slice(begin, begin + rows)


def equal_batches(left: Sequence[int], batch: int) -> Iterator[tuple[int, int, int]]:
    """Yield neighbours whose next batches have the same size, as (first, after, size).

    ``left`` are the unseen examples per client in this epoch; it falls from client to client.
    """
    first = 0
    while first < len(left) and left[first] > 0:
        rows = min(left[first], batch)
        after = first + 1
        while after < len(left) and min(left[after], batch) == rows:
            after += 1
        yield first, after, rows
        first = after


class StackTraining:
    """Trains one stack after the other."""

    def __init__(
        self, layers: list[LinearLayer], local: LocalTraining, examples: ClientCache[Tensor]
    ) -> None:
        self._layers, self._local, self._examples = layers, local, examples
        self._room = Workspace()

    def train(
        self, start: Tensor, learners: Sequence[StackMember], drawn: Sequence[Sequence[Tensor]]
    ) -> None:
        """Train these from ``start`` with the drawn orders of their examples; write local minus start."""
        narrowing = UsedFeatures(self._layers, len(learners[0].features))
        starts = [narrowing.narrow(start, each.features) for each in learners]
        batch = min(self._local.batch, learners[0].count)
        stack = Stack(narrowing.layers, self._local, starts, batch=batch)
        if drawn[0]:
            self._epochs(
                stack, [narrowed(narrowing, each, self._examples) for each in learners], learners, drawn
            )
        for place, each in enumerate(learners):
            narrowing.widen(stack.update(place), each.features, each.task.update)

    def _epochs(
        self,
        stack: Stack,
        examples: Sequence[Tensor],
        learners: Sequence[StackMember],
        drawn: Sequence[Sequence[Tensor]],
    ) -> None:
        labels, (first, *later) = [each.task.y for each in learners], zip(*drawn, strict=True)
        batches = Batches(examples, labels, first, batch=self._local.batch, room=self._room)
        steps = list(epoch_steps(batches.counts, batches.batch))
        for clients, rows in steps:
            stack.step(clients, *batches.first(clients, rows))
        for order in later:
            batches.shuffle(order)
            for clients, rows in steps:
                stack.step(clients, *batches.gather(clients, rows))


KNOWN = (nn.Flatten, nn.Linear, nn.ReLU)
STACK_NUMBERS = 1 << 20  # per stack of models: 2 MB, about what fits a core's caches
LARGEST_STACK = 64


def layers_of(module: nn.Module) -> list[LinearLayer] | None:
    """Return the layers of a module of linear layers with ReLU between, otherwise None."""
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
    """Trains clients in small stacks; each result equals that of the plain loop up to rounding."""

    def __init__(
        self, layers: list[LinearLayer], local: LocalTraining, *, seed: int, cache_bytes: int
    ) -> None:
        self._layers, self._local, self._seed = layers, local, seed
        self._features = ClientCache[Tensor](cache_bytes // 8)
        self._stack = StackTraining(layers, local, ClientCache[Tensor](cache_bytes * 7 // 8))

    @property
    def together(self) -> int:
        """How many models fit the cache."""
        return max(1, min(LARGEST_STACK, STACK_NUMBERS // self._layers[-1].after))

    def train(self, start: Tensor, tasks: Sequence[Task], *, round: int, epochs: int) -> None:
        """Train every task from ``start`` and write local minus start into its row."""
        finite = bool(start.isfinite().all())
        learners = [self._learner(task, finite=finite) for task in tasks]
        for stack in _stacks(learners, self.together):
            drawn = [
                list(orders(self._seed, round, each.task.client, count=each.count, epochs=epochs))
                for each in stack
            ]
            self._stack.train(start, stack, drawn)

    def _learner(self, task: Task, *, finite: bool) -> StackMember:
        """Return a member with only the used features if the other weights do not change, otherwise with all.

        They change with weight decay, or if one is infinite: 0 times infinity is not 0.
        """
        x = task.x.reshape(len(task.y), -1)
        if self._local.weight_decay or not finite:
            return StackMember(task, x, torch.arange(x.shape[1]))
        return StackMember(task, x, self._features.get(task.held, lambda: used_features(x)))


def _stacks(learners: Sequence[StackMember], largest: int) -> Iterator[list[StackMember]]:
    """Yield stacks of members with as many features, by falling number of examples."""
    ordered = sorted(learners, key=lambda each: (len(each.features), -each.count))
    for _, alike in groupby(ordered, key=lambda each: len(each.features)):
        together = list(alike)
        for first in range(0, len(together), largest):
            yield together[first : first + largest]
