"""One SGD step of many stacked MLPs: batched products, with the descent folded into them.

Every matrix of a client begins a whole number of cache lines after that of the client before it: a product
may round differently at another alignment of its operands, and so a client's bits do not depend on its
place or its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fedcrab.simulate.local import LocalTraining

MINUS_ONE = torch.full((1, 1, 1), -1.0)
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

    def shapes(self) -> list[tuple[int, int, int]]:
        """Place, rows and columns of its tensors."""
        weight = (self.weight, self.outputs, self.inputs)
        return [weight] if self.bias is None else [weight, (self.bias, 1, self.outputs)]


@dataclass(frozen=True, slots=True)
class _Operands:
    """The tensors of one layer that a step of some clients on some rows works with."""

    parameters: list[Tensor]  # weight, and bias if it has one
    velocities: list[Tensor]
    factors: list[Tensor]  # by which the error is multiplied for the gradient of each: inputs, ones
    output: Tensor
    error: Tensor


def padded(count: int, rows: int, columns: int) -> Tensor:
    """Room for matrices (count, rows, columns), each beginning on a cache line."""
    stride = -(-rows * columns // LINE) * LINE
    return torch.empty(count * stride).as_strided((count, rows, columns), (stride, columns, 1))


class Stack:
    """The tensors of one stack of clients, allocated once for a round."""

    def __init__(
        self, layers: list[Layer], local: LocalTraining, start: Tensor, *, clients: int, longest: int
    ) -> None:
        self._layers, self._local, self._start = layers, local, start
        batch, features = min(local.batch, longest), layers[0].inputs
        whole = max(1, REFILL_NUMBERS // (features * batch)) * batch
        self.rows = min(whole, -(-longest // batch) * batch)  # a whole number of batches
        self._x = padded(clients, self.rows, features)
        self._y = torch.zeros(clients, self.rows, 1, dtype=torch.int64)
        self._outputs = [padded(clients, batch, layer.outputs) for layer in layers]
        self._errors = [padded(clients, batch, layer.outputs) for layer in layers]
        self._ones = padded(clients, 1, batch).fill_(1)
        self._parameters = [self._loaded(layer, clients) for layer in layers]
        self._velocities = [
            [padded(*p.shape).zero_() for p in tensors] if local.momentum else tensors
            for tensors in self._parameters
        ]
        self._operands: dict[tuple[int, int, int, int], list[_Operands]] = {}

    def _loaded(self, layer: Layer, clients: int) -> list[Tensor]:
        return [
            padded(clients, rows, columns).copy_(self._start[at : at + rows * columns].view(rows, columns))
            for at, rows, columns in layer.shapes()
        ]

    def refill(self, place: int, x: Tensor, y: Tensor, order: Tensor) -> None:
        """Gather the next examples of the client at ``place``, in its order."""
        torch.index_select(x, 0, order, out=self._x[place, : len(order)])
        torch.index_select(y, 0, order, out=self._y[place, : len(order), 0])

    def write_update(self, place: int, update: Tensor) -> None:
        """Local minus start of the client at ``place``."""
        for layer, tensors in zip(self._layers, self._parameters, strict=True):
            for (at, rows, columns), tensor in zip(layer.shapes(), tensors, strict=True):
                part = slice(at, at + rows * columns)
                torch.sub(tensor[place].reshape(-1), self._start[part], out=update[part])

    def step(self, clients: slice, rows: slice) -> None:
        """One SGD step of these clients on these of the gathered rows."""
        layers = self._operands_of(clients, rows)
        for operands in layers[:-1]:
            _forward(operands)
            operands.output.relu_()
        _forward(layers[-1])
        _softmax_error(layers[-1], self._y[clients, rows])
        for below, operands in reversed(list(pairwise(layers))):
            _backward(operands, below)
        for operands in layers:  # only now: the errors are made with the weights of the forward pass
            self._descend(operands)

    def _operands_of(self, clients: slice, rows: slice) -> list[_Operands]:
        key = (clients.start, clients.stop, rows.start, rows.stop)
        if key not in self._operands:
            batch = slice(0, rows.stop - rows.start)
            inputs = [self._x[clients, rows], *(output[clients, batch] for output in self._outputs)]
            self._operands[key] = [
                _Operands(
                    [p[clients] for p in self._parameters[place]],
                    [v[clients] for v in self._velocities[place]],
                    [inputs[place], self._ones[clients, :, batch]],
                    inputs[place + 1],
                    self._errors[place][clients, batch],
                )
                for place in range(len(self._layers))
            ]
        return self._operands[key]

    def _descend(self, operands: _Operands) -> None:
        """Descend: W ← (1 − lr·decay)·W − lr/n·errorᵀ·x, or with momentum v ← momentum·v + 1/n·errorᵀ·x."""
        local, error, count = self._local, operands.error, operands.error.shape[1]
        keep, rate = 1 - local.learning_rate * local.weight_decay, -local.learning_rate / count
        if local.momentum:
            keep, rate = local.momentum, 1 / count
        weight, *bias = operands.velocities
        weight.baddbmm_(error.mT, operands.factors[0], beta=keep, alpha=rate)
        if bias:
            bias[0].baddbmm_(operands.factors[1], error, beta=keep, alpha=rate)
        if local.momentum:
            for parameter, velocity in zip(operands.parameters, operands.velocities, strict=True):
                velocity.add_(parameter, alpha=local.weight_decay)
                parameter.add_(velocity, alpha=-local.learning_rate)


def _forward(operands: _Operands) -> None:
    """Layer: z = x·Wᵀ + b."""
    weight, *bias = operands.parameters
    if bias:
        torch.baddbmm(bias[0], operands.factors[0], weight.mT, out=operands.output)
    else:
        torch.bmm(operands.factors[0], weight.mT, out=operands.output)


def _softmax_error(operands: _Operands, labels: Tensor) -> None:
    """Of the summed cross-entropy: ∂/∂z = softmax(z) − onehot(y)."""
    torch.softmax(operands.output, -1, out=operands.error)
    operands.error.scatter_add_(2, labels, MINUS_ONE.expand(labels.shape))


def _backward(operands: _Operands, below: _Operands) -> None:
    """Through the weights and the ReLU below: error·W where the output was positive, else 0."""
    torch.bmm(operands.error, operands.parameters[0], out=below.error)
    torch.ops.aten.threshold_backward.grad_input(below.error, below.output, 0, grad_input=below.error)
