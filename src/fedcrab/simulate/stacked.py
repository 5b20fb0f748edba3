"""Linear models and MLPs with many clients at once, without autograd.

Clients are stacked by falling number of examples, so that at every step those with a whole batch are
neighbours, and those with a smaller last batch follow. The arithmetic of a step is in `stack`; where it is
less work, the first layer is trained in its dual form (`dual_layer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from fedcrab.simulate.dual import Dual, pays
from fedcrab.simulate.features import used_features
from fedcrab.simulate.kept import Kept
from fedcrab.simulate.learner import Learner
from fedcrab.simulate.local import LocalTraining, Task, orders
from fedcrab.simulate.primal import Primal
from fedcrab.simulate.stack import Layer
from fedcrab.simulate.untouched import untouched

KNOWN = (nn.Flatten, nn.Linear, nn.ReLU)
STACK_NUMBERS = 1 << 20  # in the models of one stack: 2 MB, about what stays in a core's caches
LARGEST_STACK = 64


def layers_of(module: nn.Module) -> list[Layer] | None:
    """The layers of a module that is linear layers with ReLU between, else None."""
    if not untouched(module, KNOWN):
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
        self._kept = Kept()
        self._primal, self._dual = Primal(layers, local), Dual(layers, local, self._kept)

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

    def _learner(self, task: Task, *, finite: bool, epochs: int) -> Learner:
        """With the used features where the weights of others stay as they are, else with all.

        They do not under weight decay, nor where one is infinite: 0 times it is not 0.
        """
        x = task.x.reshape(len(task.y), -1)
        if self._local.weight_decay or not finite:
            return Learner(task, x, torch.arange(x.shape[1]), dual=False)
        features = self._kept.get(task.held, "features", lambda: used_features(x))
        dual = pays(self._layers, self._local, examples=len(x), features=len(features), epochs=epochs)
        return Learner(task, x, features, dual)


def _stacks(learners: Sequence[Learner], largest: Callable[[int], int]) -> Iterator[list[Learner]]:
    """Those of one kind, by falling number of examples, in stacks of as many as each kind may have."""
    ordered = sorted(learners, key=lambda each: (each.kind, -each.count))
    for (columns, _), alike in groupby(ordered, key=lambda each: each.kind):
        together = list(alike)
        for first in range(0, len(together), largest(columns)):
            yield together[first : first + largest(columns)]
