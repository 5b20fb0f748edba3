"""A stack of clients trained as the layers are written: every layer's weight moves with every step."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedcrab.simulate.batches import Batches
from fedcrab.simulate.features import Narrowing
from fedcrab.simulate.kept import Room
from fedcrab.simulate.learner import Learner, steps
from fedcrab.simulate.local import LocalTraining
from fedcrab.simulate.stack import Layer, Stack


class Primal:
    """Trains one stack after the other."""

    def __init__(self, layers: list[Layer], local: LocalTraining) -> None:
        self._layers, self._local = layers, local
        self._room = Room()

    def train(self, start: Tensor, learners: Sequence[Learner], drawn: Sequence[Sequence[Tensor]]) -> None:
        """Train these from ``start`` with the drawn orders of their examples; write local minus start."""
        narrowing = Narrowing(self._layers, len(learners[0].features))
        x, labels = self._examples(narrowing, learners), [each.task.y for each in learners]
        batches = Batches(x, labels, batch=self._local.batch)
        starts = [narrowing.narrow(start, each.features) for each in learners]
        stack = Stack(narrowing.layers, self._local, starts, batch=batches.batch)
        for order in zip(*drawn, strict=True):
            batches.shuffle(order)
            for clients, rows in steps(batches.counts, batches.batch):
                stack.step(clients, *batches.gather(clients, rows))
        for place, each in enumerate(learners):
            narrowing.widen(stack.update(place), each.features, each.task.update)

    def _examples(self, narrowing: Narrowing, learners: Sequence[Learner]) -> Tensor:
        """Those of all learners."""
        (x,), after = self._room.lend((sum(each.count for each in learners), narrowing.width)), 0
        for each in learners:
            before, after = after, after + len(each.x)
            narrowing.examples(each.x, each.features, x[before:after])
        return x
