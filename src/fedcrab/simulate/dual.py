"""A stack of clients whose first layer is trained in its dual form, those above it as they are written."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedcrab.simulate.dual_layer import DualLayer, kernel_of
from fedcrab.simulate.features import Narrowing
from fedcrab.simulate.kept import Kept
from fedcrab.simulate.learner import Learner, steps
from fedcrab.simulate.local import LocalTraining
from fedcrab.simulate.stack import LINE, Layer, Stack, moved

MOST_EXAMPLES = 1024  # whose kernel has 4 MB
LEAST_WEIGHTS = 1 << 14  # of fewer the arithmetic is not what takes the time
GAIN = 1.2
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
        self._room: dict[tuple[int, int], DualLayer] = {}

    def train(self, start: Tensor, learners: Sequence[Learner], drawn: Orders) -> None:
        """Train these from ``start`` with the drawn orders of their examples; write local minus start."""
        narrowing = Narrowing(self._layers, len(learners[0].features))
        layer, above = self._layer(learners), self._above(start, learners)
        first = [orders[0] for orders in drawn]
        for place, each in enumerate(learners):
            model = narrowing.narrow(start, each.features)
            before = _outputs(narrowing.layers[0], model, self._examples(narrowing, each))
            layer.load(place, self._kernel(narrowing, each), before, each.task.y, first[place])
        self._epochs(layer, above, [each.count for each in learners], drawn)
        for place, each in enumerate(learners):
            errors = layer.moved(place, first[place])
            update = _update(narrowing.layers[0], errors, self._examples(narrowing, each))
            narrowing.widen(torch.cat([*update, above.update(place)]), each.features, each.task.update)

    def _epochs(self, layer: DualLayer, above: Stack, counts: Sequence[int], drawn: Orders) -> None:
        batch, rate = self._local.batch, self._local.learning_rate
        for clients, rows in steps(counts, batch):
            layer.first_step(above, clients, rows, rate / (rows.stop - rows.start))
        places = torch.zeros(len(counts), counts[0], dtype=torch.int64)
        for epoch in range(1, len(drawn[0])):
            for place, orders in enumerate(drawn):
                places[place, : counts[place]] = layer.places(place, orders[0], orders[epoch])
            for clients, rows in steps(counts, batch):
                layer.step(above, clients, places[clients, rows], rate / (rows.stop - rows.start))

    def _layer(self, learners: Sequence[Learner]) -> DualLayer:
        """Room that is used again: fresh memory is slow to fill."""
        clients, columns = len(learners), learners[0].columns
        if (clients, columns) not in self._room:
            outputs, batch = self._layers[0].outputs, min(self._local.batch, columns)
            self._room = {(clients, columns): DualLayer(clients, columns, outputs, batch=batch)}
        return self._room[clients, columns]

    def _above(self, start: Tensor, learners: Sequence[Learner]) -> Stack:
        """The layers above the first."""
        first, *rest = self._layers
        starts = [start[first.after :]] * len(learners)
        batch = min(self._local.batch, learners[0].count)
        return Stack(moved(rest, -first.after), self._local, starts, batch=batch)

    def _examples(self, narrowing: Narrowing, learner: Learner) -> Tensor:
        def make() -> Tensor:
            x = learner.x.new_empty(learner.count, narrowing.width)
            narrowing.examples(learner.x, learner.features, x)
            return x

        return self._kept.get(learner.task.held, "examples", make)

    def _kernel(self, narrowing: Narrowing, learner: Learner) -> Tensor:
        def make() -> Tensor:
            return kernel_of(self._examples(narrowing, learner), bias=self._layers[0].bias is not None)

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
