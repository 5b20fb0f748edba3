"""One SGD step of many stacked MLPs: batched products, with the descent folded into them.

A stack holds one flat model a client, and every layer is a view into it, so that loading is one copy and
the update one subtraction. Every matrix of a client begins a whole number of cache lines after that of
the client before it: a product may round differently at another alignment of its operands, and so a
client's bits do not depend on its place or its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcrab.simulate.local import LocalTraining

LINE = 16  # float32 numbers in a cache line
REFILL_NUMBERS = 1 << 18  # in the shuffled examples gathered at a time for one client: 1 MB


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer's sizes, and where its weight (outputs x inputs) and bias are in the flat vector."""

    inputs: int
    outputs: int
    weight: int
    bias: int | None

    @property
    def after(self) -> int:
        """The first place behind it."""
        return self.weight + self.outputs * (self.inputs + (self.bias is not None))


def padded(count: int, rows: int, columns: int) -> Tensor:
    """Matrices of zeros (count, rows, columns), each beginning on a cache line."""
    stride = -(-rows * columns // LINE) * LINE
    return torch.zeros(count * stride).as_strided((count, rows, columns), (stride, columns, 1))


class Stack:
    """The tensors of one stack of clients, allocated once for a round."""

    def __init__(
        self, layers: list[Layer], local: LocalTraining, start: Tensor, *, clients: int, longest: int
    ) -> None:
        self._layers, self._local = layers, local
        self.models = padded(clients, 1, len(start))[:, 0].copy_(start)
        self._velocities = padded(clients, 1, len(start))[:, 0] if local.momentum else self.models
        self._weights = [_view(self.models, layer.weight, layer.outputs, layer.inputs) for layer in layers]
        self._biases = [_bias(self.models, layer) for layer in layers]
        self._weight_steps = [
            _view(self._velocities, layer.weight, layer.outputs, layer.inputs) for layer in layers
        ]
        self._bias_steps = [_bias(self._velocities, layer) for layer in layers]
        self._allocate(clients, longest)

    def _allocate(self, clients: int, longest: int) -> None:
        batch, features = self._local.batch, self._layers[0].inputs
        whole = max(1, REFILL_NUMBERS // (features * batch)) * batch
        self.rows = min(whole, -(-longest // batch) * batch)  # a whole number of batches
        self._x = padded(clients, self.rows, features)
        self._y = torch.zeros(clients, self.rows, 1, dtype=torch.int64)
        self._outputs = [padded(clients, batch, layer.outputs) for layer in self._layers]
        self._errors = [padded(clients, batch, layer.outputs) for layer in self._layers]
        self._ones = padded(clients, 1, batch).fill_(1)
        self._minus_one = torch.full((1, 1, 1), -1.0)

    def refill(self, place: int, x: Tensor, y: Tensor, order: Tensor) -> None:
        """Gather the next examples of the client at ``place``, in its order."""
        torch.index_select(x, 0, order, out=self._x[place, : len(order)])
        torch.index_select(y, 0, order, out=self._y[place, : len(order), 0])

    def step(self, clients: slice, rows: slice) -> None:
        """One SGD step of these clients on these of the gathered rows."""
        batch = slice(0, rows.stop - rows.start)
        inputs = [self._x[clients, rows], *(output[clients, batch] for output in self._outputs)]
        for place in range(len(self._layers)):
            self._forward(place, inputs, clients)
        self._softmax_error(inputs[-1], clients, rows, batch)
        for place in reversed(range(len(self._layers))):
            error = self._errors[place][clients, batch]
            if place:  # through the weights as they were in the forward pass, so before the descent
                self._backward(place, error, inputs[place], clients, batch)
            self._descend(place, error, inputs[place], clients)
        if self._local.momentum:
            self._move(clients)

    def _forward(self, place: int, inputs: list[Tensor], clients: slice) -> None:
        """Layer: z = x·Wᵀ + b, and ReLU for all but the last."""
        weight, bias, output = self._weights[place][clients].mT, self._biases[place], inputs[place + 1]
        if bias is None:
            torch.bmm(inputs[place], weight, out=output)
        else:
            torch.baddbmm(bias[clients], inputs[place], weight, out=output)
        if place + 1 < len(self._layers):
            output.relu_()

    def _softmax_error(self, logits: Tensor, clients: slice, rows: slice, batch: slice) -> None:
        """∂(summed cross-entropy)/∂z = softmax(z) − onehot(y)."""
        error, labels = self._errors[-1][clients, batch], self._y[clients, rows]
        error.copy_(torch.softmax(logits, -1))
        error.scatter_add_(2, labels, self._minus_one.expand(labels.shape))

    def _backward(self, place: int, error: Tensor, hidden: Tensor, clients: slice, batch: slice) -> None:
        below = self._errors[place - 1][clients, batch]
        torch.bmm(error, self._weights[place][clients], out=below)
        below.masked_fill_(hidden <= 0, 0)

    def _descend(self, place: int, error: Tensor, inputs: Tensor, clients: slice) -> None:
        """W ← (1 − lr·decay)·W − lr/n·errorᵀ·x; with momentum v ← momentum·v + 1/n·errorᵀ·x."""
        local, count = self._local, inputs.shape[1]
        keep, rate = 1 - local.learning_rate * local.weight_decay, -local.learning_rate / count
        if local.momentum:
            keep, rate = local.momentum, 1 / count
        self._weight_steps[place][clients].baddbmm_(error.mT, inputs, beta=keep, alpha=rate)
        bias = self._bias_steps[place]
        if bias is not None:
            bias[clients].baddbmm_(self._ones[clients, :, :count], error, beta=keep, alpha=rate)

    def _move(self, clients: slice) -> None:
        """Descend along the velocity: v ← v + decay·w, then w ← w − lr·v."""
        models, velocities = self.models[clients], self._velocities[clients]
        if self._local.weight_decay:
            velocities.add_(models, alpha=self._local.weight_decay)
        models.add_(velocities, alpha=-self._local.learning_rate)


def _view(flat: Tensor, place: int, rows: int, columns: int) -> Tensor:
    return flat[:, place : place + rows * columns].view(len(flat), rows, columns)


def _bias(flat: Tensor, layer: Layer) -> Tensor | None:
    return None if layer.bias is None else _view(flat, layer.bias, 1, layer.outputs)
