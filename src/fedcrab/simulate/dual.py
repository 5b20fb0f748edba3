"""A stack of clients whose first layer is trained in its dual form, those above it as they are written."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedcrab.simulate.dual_layer import DualLayer, kernel_of
from fedcrab.simulate.features import Narrowing
from fedcrab.simulate.kept import Kept, Room
from fedcrab.simulate.learner import Learner, steps
from fedcrab.simulate.local import LocalTraining
from fedcrab.simulate.stack import LINE, Layer, Stack, moved

MOST_EXAMPLES = 1024  # whose kernel has 4 MB
LEAST_WEIGHTS = 1 << 14  # of fewer the arithmetic is not what takes the time
GAIN = 1.2
KERNEL_NUMBERS = 3 << 20  # in the kernels and outputs of one stack: 12 MB
Orders = Sequence[Sequence[Tensor]]


def pays(layers: Sequence[Layer], local: LocalTraining, *, examples: int, features: int, epochs: int) -> bool:
    """Whether the dual form is less work: plain SGD, a wide first layer with others above, few examples.

    Per example and output it has 2·features + epochs·examples products in place of 2·epochs·features. What
    is kept from earlier rounds must have no say: the two forms round differently.
    """
    outputs = layers[0].outputs
    if len(layers) < 2 or local.momentum or local.weight_decay or outputs % LINE:  # rows on cache lines
        return False
    if examples > MOST_EXAMPLES or features * outputs < LEAST_WEIGHTS:
        return False
    return 2 * epochs * features >= GAIN * (2 * features + epochs * examples)


class Dual:
    """Trains one stack after the other."""

    def __init__(self, layers: list[Layer], local: LocalTraining, kept: Kept) -> None:
        self._layers, self._local, self._kept = layers, local, kept
        self._room = Room()

    def together(self, columns: int) -> int:
        """How many clients of this width are stacked: as many as stay near a core."""
        return max(1, KERNEL_NUMBERS // (columns * (columns + 2 * self._layers[0].outputs)))

    def train(self, start: Tensor, learners: Sequence[Learner], drawn: Orders) -> None:
        """Train these from ``start`` with the drawn orders of their examples; write local minus start."""
        layer, above = self._layer(learners), self._above(start, learners)
        first = [orders[0] for orders in drawn]
        for place, each in enumerate(learners):
            layer.load(place, self._kernel(each), self._before(start, each), each.task.y, first[place])
        self._epochs(layer, above, [each.count for each in learners], drawn)
        for place, each in enumerate(learners):
            narrowing = self._narrowing(each)
            update = _update(narrowing.layers[0], layer.moved(place, first[place]), self._examples(each))
            narrowing.widen(torch.cat([*update, above.update(place)]), each.features, each.task.update)

    def _epochs(self, layer: DualLayer, above: Stack, counts: Sequence[int], drawn: Orders) -> None:
        batch, rate = self._local.batch, self._local.learning_rate
        for clients, rows in steps(counts, batch):
            layer.first_step(above, clients, rows, rate / (rows.stop - rows.start))
        for epoch in range(1, len(drawn[0])):
            layer.shuffle([orders[epoch] for orders in drawn])
            for clients, rows in steps(counts, batch):
                layer.step(above, clients, rows, rate / (rows.stop - rows.start))

    def _layer(self, learners: Sequence[Learner]) -> DualLayer:
        columns, outputs = learners[0].columns, self._layers[0].outputs
        batch = min(self._local.batch, columns)
        return DualLayer(len(learners), columns, outputs, batch=batch, room=self._room)

    def _above(self, start: Tensor, learners: Sequence[Learner]) -> Stack:
        """The layers above the first."""
        first, *rest = self._layers
        starts = [start[first.after :]] * len(learners)
        batch = min(self._local.batch, learners[0].count)
        return Stack(moved(rest, -first.after), self._local, starts, batch=batch)

    def _before(self, start: Tensor, learner: Learner) -> Tensor:
        """The first layer's outputs with the weights of the start."""
        narrowing = self._narrowing(learner)
        model = narrowing.narrow(start, learner.features)
        return _outputs(narrowing.layers[0], model, self._examples(learner))

    def _narrowing(self, learner: Learner) -> Narrowing:
        return Narrowing(self._layers, len(learner.features))

    def _examples(self, learner: Learner) -> Tensor:
        def make() -> Tensor:
            narrowing = self._narrowing(learner)
            x = learner.x.new_empty(learner.count, narrowing.width)
            narrowing.examples(learner.x, learner.features, x)
            return x

        return self._kept.get(learner.task.held, "examples", make)

    def _kernel(self, learner: Learner) -> Tensor:
        def make() -> Tensor:
            return kernel_of(self._examples(learner), bias=self._layers[0].bias is not None)

        return self._kept.get(learner.task.held, "kernel", make)


def _outputs(layer: Layer, model: Tensor, x: Tensor) -> Tensor:
    """The layer: x·Wᵀ + b."""
    weight = model[layer.weight : layer.weight + layer.outputs * layer.inputs].view(layer.outputs, -1)
    if layer.bias is None:
        return torch.mm(x, weight.mT)
    return torch.addmm(model[layer.bias : layer.bias + layer.outputs], x, weight.mT)


def _update(layer: Layer, errors: Tensor, x: Tensor) -> list[Tensor]:
    """What the errors have moved the layer's weight and bias by: −Σ dᵢ·xᵢᵀ and −Σ dᵢ."""
    weight = torch.mm(errors.mT, x).neg_().view(-1)
    return [weight] if layer.bias is None else [weight, errors.sum(0).neg_()]
