"""One SGD step of many stacked MLPs: batched products that include the descent.

Each client's matrices start a whole number of cache lines after those of the previous client. A product may
round differently at another alignment; so a client's bits do not depend on its position or its neighbours.

Features that none of a client's examples uses are left out: their weights get no gradient. In a few hundred
MNIST images, a quarter of the pixels is black in all of them. The result is the same sum without its zeros.

Working memory is kept between rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor

from fedcrab.simulate.engines.plain import LocalTraining

MINUS_ONE = torch.full((1, 1, 1), -1.0)
LINE = 16  # float32 numbers in a cache line


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """The sizes of a linear layer, and where weight (outputs x inputs) and bias are in the flat vector."""

    inputs: int
    outputs: int
    weight: int
    bias: int | None

    @property
    def after(self) -> int:
        """The end of the layer in the vector."""
        return self.weight + self.outputs * (self.inputs + (self.bias is not None))

    def shapes(self) -> list[tuple[int, int, int]]:
        """Return position, rows and columns of its tensors."""
        weight = (self.weight, self.outputs, self.inputs)
        return [weight] if self.bias is None else [weight, (self.bias, 1, self.outputs)]


def moved(layers: Sequence[LinearLayer], by: int) -> list[LinearLayer]:
    """Return the same layers at shifted positions of the vector."""
    return [
        replace(each, weight=each.weight + by, bias=None if each.bias is None else each.bias + by)
        for each in layers
    ]


@dataclass(frozen=True, slots=True)
class _Operands:
    """The tensors of one layer for a step of some clients on some rows."""

    parameters: list[Tensor]  # weight, and bias if it has one
    velocities: list[Tensor]
    factors: list[Tensor]  # the error times these gives the gradient of each: inputs, ones
    output: Tensor
    error: Tensor


def padded(count: int, rows: int, columns: int) -> Tensor:
    """Return memory for matrices (count, rows, columns), each starting on a cache line."""
    stride = -(-rows * columns // LINE) * LINE
    return torch.empty(count * stride).as_strided((count, rows, columns), (stride, columns, 1))


class Stack:
    """The tensors of one stack of clients, allocated once per round."""

    def __init__(
        self, layers: list[LinearLayer], local: LocalTraining, starts: Sequence[Tensor], *, batch: int
    ) -> None:
        self._layers, self._local, self._starts, clients = layers, local, starts, len(starts)
        self._outputs = [padded(clients, batch, layer.outputs) for layer in layers]
        self._errors = [padded(clients, batch, layer.outputs) for layer in layers]
        self._ones = padded(clients, 1, batch).fill_(1)
        self._parameters = [self._loaded(layer) for layer in layers]
        self._velocities = [
            [padded(*p.shape).zero_() for p in tensors] if local.momentum else tensors
            for tensors in self._parameters
        ]
        self._made: dict[tuple[int, int, int, int], list[_Operands]] = {}

    def _loaded(self, layer: LinearLayer) -> list[Tensor]:
        tensors = []
        for at, rows, columns in layer.shapes():
            tensor = padded(len(self._starts), rows, columns)
            for place, start in enumerate(self._starts):
                tensor[place].copy_(start[at : at + rows * columns].view(rows, columns))
            tensors.append(tensor)
        return tensors

    def update(self, place: int) -> Tensor:
        """Return local minus start of the client at ``place``."""
        start = self._starts[place]
        local = torch.empty_like(start)
        for layer, tensors in zip(self._layers, self._parameters, strict=True):
            for (at, rows, columns), tensor in zip(layer.shapes(), tensors, strict=True):
                local[at : at + rows * columns] = tensor[place].reshape(-1)
        return local - start

    def step(self, clients: slice, x: Tensor, labels: Tensor, *, below: Tensor | None = None) -> None:
        """Make one SGD step of these clients on a batch each; ``below`` gets the error with respect to x."""
        layers = self._operands(clients, x)
        for operands in layers[:-1]:
            _forward(operands)
            operands.output.relu_()
        _forward(layers[-1])
        _softmax_error(layers[-1], labels)
        for under, operands in reversed(list(pairwise(layers))):
            _backward(operands, under)
        if below is not None:
            torch.bmm(layers[0].error, layers[0].parameters[0], out=below)
        for operands in layers:  # only now, because the errors need the weights of the forward pass
            self._descend(operands)

    def _operands(self, clients: slice, x: Tensor) -> list[_Operands]:
        """Return the operands; made once per set of clients and position of their batch."""
        key = (clients.start, clients.stop, x.shape[1], x.data_ptr())
        if key not in self._made:
            self._made[key] = self._make_operands(clients, x)
        return self._made[key]

    def _make_operands(self, clients: slice, x: Tensor) -> list[_Operands]:
        batch = slice(0, x.shape[1])
        inputs = [x, *(output[clients, batch] for output in self._outputs)]
        ones = self._ones[clients, :, batch]
        return [
            _Operands(
                [p[clients] for p in self._parameters[place]],
                [v[clients] for v in self._velocities[place]],
                [inputs[place], ones],
                inputs[place + 1],
                self._errors[place][clients, batch],
            )
            for place in range(len(self._layers))
        ]

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
    """Propagate through the weights and the ReLU below: error·W where the output was positive, else 0."""
    torch.bmm(operands.error, operands.parameters[0], out=below.error)
    pass_relu(below.error, below.output)


def pass_relu(error: Tensor, output: Tensor) -> None:
    """Keep the error where the output was positive; elsewhere set it to 0."""
    torch.ops.aten.threshold_backward.grad_input(error, output, 0, grad_input=error)


STEP = 32  # used features are padded to a multiple of this, so that clients of similar size can be stacked


def used_features(x: Tensor) -> Tensor:
    """Return the features that are not 0 in every example, padded with others to a multiple of STEP."""
    unused = torch.from_numpy(~x.numpy().any(axis=0))
    wanted = -(-int((~unused).sum()) // STEP) * STEP
    return torch.argsort(unused.to(torch.uint8), stable=True)[: max(STEP, wanted)].sort().values


class UsedFeatures:
    """Converts between a model and a narrow one whose first layer has only some inputs.

    The narrow model's inputs fill whole cache lines; the padding inputs are 0 in every example.
    """

    def __init__(self, layers: list[LinearLayer], inputs: int) -> None:
        first = layers[0]
        self._outputs, self._all, self._inputs = first.outputs, first.inputs, inputs
        self.width = -(-inputs // LINE) * LINE
        removed_weights = first.outputs * (first.inputs - self.width)
        below, *above = moved(layers, -removed_weights)
        self.layers = [replace(below, inputs=self.width, weight=first.weight), *above]

    def narrow(self, model: Tensor, features: Tensor) -> Tensor:
        """Return the model with only these inputs."""
        weight, rest = model[: self._outputs * self._all], model[self._outputs * self._all :]
        narrow = weight.new_zeros(self._outputs * self.width + len(rest))
        self._weight(narrow).copy_(weight.view(-1, self._all).index_select(1, features))
        narrow[self._outputs * self.width :] = rest
        return narrow

    def examples(self, x: Tensor, features: Tensor, out: Tensor) -> None:
        """Copy the examples with only these features to ``out``."""
        if self.width == self._inputs:
            torch.index_select(x, 1, features, out=out)
        else:
            out[:, : self._inputs] = x.index_select(1, features)
            out[:, self._inputs :] = 0

    def widen(self, update: Tensor, features: Tensor, out: Tensor) -> None:
        """Write an update of the narrow model as one of the whole model to ``out``."""
        after = self._outputs * self._all
        everywhere = features.expand(self._outputs, -1)
        out[:after].zero_().view(-1, self._all).scatter_(1, everywhere, self._weight(update))
        out[after:] = update[self._outputs * self.width :]

    def _weight(self, narrow: Tensor) -> Tensor:
        return narrow[: self._outputs * self.width].view(-1, self.width)[:, : self._inputs]


class Workspace:
    """Working memory that is reused, because new memory is slow to fill."""

    def __init__(self) -> None:
        self._numbers = torch.empty(0)

    def lend(self, *shapes: tuple[int, ...]) -> list[Tensor]:
        """Return uninitialised tensors of these shapes, each on a cache line, in place of all before."""
        sizes = [-(-prod(shape) // LINE) * LINE for shape in shapes]
        if len(self._numbers) < sum(sizes):
            self._numbers = torch.empty(sum(sizes))
        ends = list(accumulate(sizes))
        return [
            self._numbers[end - size : end - size + prod(shape)].view(shape)
            for size, end, shape in zip(sizes, ends, shapes, strict=True)
        ]
