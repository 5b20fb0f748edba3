"""Linear models and MLPs with many clients at once, without autograd.

Clients are stacked by falling number of examples, so that at every step those with a whole batch are
neighbours, and those with a smaller last batch follow. The arithmetic of a step is in `stack`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from fedcrab.simulate.local import LocalTraining, Task, orders
from fedcrab.simulate.stack import Layer, Stack

STACK_NUMBERS = 1 << 19  # in the models of one stack: 2 MB, about what stays in a core's caches
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


class Stacked:
    """Trains clients in stacks of a few; the result of each is that of the plain loop up to rounding."""

    def __init__(self, layers: list[Layer], local: LocalTraining, *, seed: int) -> None:
        self._layers, self._local, self._seed = layers, local, seed

    @property
    def together(self) -> int:
        """As many models as stay in cache."""
        return max(1, min(LARGEST_STACK, STACK_NUMBERS // self._layers[-1].after))

    def train(self, start: Tensor, tasks: Sequence[Task], *, round: int, epochs: int) -> None:
        """Train every task from ``start`` and write local minus start into its row."""
        ordered = sorted(tasks, key=lambda task: -len(task.y))
        for first in range(0, len(ordered), self.together):
            self._train_stack(start, ordered[first : first + self.together], round, epochs)

    def _train_stack(self, start: Tensor, tasks: Sequence[Task], round: int, epochs: int) -> None:
        counts = [len(task.y) for task in tasks]
        stack = Stack(self._layers, self._local, start, clients=len(tasks), longest=counts[0])
        pairs = zip(tasks, counts, strict=True)
        drawn = [orders(self._seed, round, task.client, count=n, epochs=epochs) for task, n in pairs]
        examples = [(task.x.reshape(len(task.y), -1), task.y) for task in tasks]
        for order in zip(*drawn, strict=True):
            self._epoch(stack, examples, counts, order)
        for place, task in enumerate(tasks):
            stack.write_update(place, task.update)

    def _epoch(
        self,
        stack: Stack,
        examples: Sequence[tuple[Tensor, Tensor]],
        counts: Sequence[int],
        order: Sequence[Tensor],
    ) -> None:
        for begin in range(0, counts[0], stack.rows):
            for place, (x, y) in enumerate(examples):
                stack.refill(place, x, y, order[place][begin : begin + stack.rows])
            for offset in range(0, min(stack.rows, counts[0] - begin), self._local.batch):
                for first, after, rows in alike([n - begin - offset for n in counts], self._local.batch):
                    stack.step(slice(first, after), slice(offset, offset + rows))


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
