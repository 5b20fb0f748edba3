"""Which CNNs can be computed with the batch innermost, and of which layers.

A convolution, its ReLU and its pooling in either order; two or more of such; then linear layers with ReLU
between. Bias and ReLU come after the pooling, with which they commute, on a quarter of the numbers.

A CNN with the batch innermost, without autograd.

Plain CNNs, with autograd but laid out for the processor.

Two rewritings, neither of which changes the function: tensors in channels_last, which the convolutions
and the pooling on a processor prefer by far (a first layer of one channel most of all), and ReLU after
max-pooling in place of before it (they commute, and it then has a quarter of the work).

Small CNNs, one client after the other.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from fedcrab.simulate.engines.cnn_layers import Bias, CnnLayer, Dense, Pool, Relu, Shape, UnfoldedConvolution
from fedcrab.simulate.engines.fourier import FourierConvolution, fourier_is_faster
from fedcrab.simulate.engines.plain import LocalTraining, Sgd, Task, orders
from fedcrab.simulate.models import Residual, as_made, only_plain_layers, read, write

Module = TypeVar("Module", bound=nn.Module)


class BatchLast:
    """A CNN, for the engine of CNNs: the first convolution, and all that follows."""

    def __init__(self, first: UnfoldedConvolution, rest: Sequence[CnnLayer]) -> None:
        self._first, self._rest = first, rest
        self.weights = first.weights + [weight for layer in rest for weight in layer.weights]
        self.as_torch = first.as_torch + [weight for layer in rest for weight in layer.as_torch]

    def gradients(self, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        """Of the mean cross-entropy of a batch, for every weight."""
        gradient, found = _of_cross_entropy(self._logits(x), y), []
        for layer in reversed(self._rest):
            gradient, of_weights = layer.backward(gradient)
            found.append(of_weights)
        found.append(self._first.backward(gradient))
        return [each for of_weights in reversed(found) for each in of_weights]

    def _logits(self, x: Tensor) -> Tensor:
        x = self._first.forward(x)
        for layer in self._rest:
            x = layer.forward(x)
        return x


def _of_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """(softmax − 1 at the label) / batch."""
    n = len(y)
    gradient = torch.softmax(logits, 0)
    gradient.scatter_add_(0, y[None], torch.full((1, n), -1.0))
    return gradient.div_(n)


LETTERS: dict[type, str] = {nn.Conv2d: "c", nn.MaxPool2d: "p", nn.ReLU: "r", nn.Flatten: "f", nn.Linear: "l"}
POOLS = ((2, 2, 0, 1), ((2, 2), (2, 2), 0, 1))  # size, stride, padding, dilation
PATTERN = re.compile("(cp?r?){2,}fl(rl)*")


def batch_last(network: nn.Sequential, shape: Sequence[int]) -> BatchLast | None:
    """A rewritten CNN for examples of a shape, or None where this cannot be done or does not pay."""
    kinds = "".join(LETTERS[type(step)] for step in network)
    if not PATTERN.fullmatch(kinds) or not all(map(_plain, network)):
        return None
    shapes = _shapes(network, shape)
    if shapes is None or not all(
        fourier_is_faster(step, given) for step, given in _convolutions(network, shapes)[1:]
    ):
        return None
    first, given = _convolutions(network, shapes)[0]
    return BatchLast(UnfoldedConvolution(first, given), list(_after(network, shapes)))


def _plain(step: nn.Module) -> bool:
    """Whether a step is as it is by default in all that the layers here do not know."""
    if isinstance(step, nn.Conv2d):
        known = (step.stride, step.dilation, step.groups, step.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
        return known and not isinstance(step.padding, str)
    if isinstance(step, nn.MaxPool2d):
        sizes = (step.kernel_size, step.stride, step.padding, step.dilation)
        return sizes in POOLS and not step.ceil_mode and not step.return_indices
    return not isinstance(step, nn.Flatten) or (step.start_dim, step.end_dim) == (1, -1)


def _shapes(network: nn.Sequential, shape: Sequence[int]) -> list[Shape] | None:
    """What each step is given, with 1 × 1 pixels after flattening; None if such examples do not go through.

    The module will say why when it is used.
    """
    if len(shape) != 3:
        return None
    x, found = torch.zeros(1, *shape), []
    try:
        with torch.inference_mode():
            for step in network:
                channels, height, width = (*x.shape[1:], 1, 1)[:3]
                found.append((height, width, channels))
                x = step(x)
    except RuntimeError:
        return None
    return found


def _convolutions(network: nn.Sequential, shapes: list[Shape]) -> list[tuple[nn.Conv2d, Shape]]:
    both = zip(network, shapes, strict=True)
    return [(step, given) for step, given in both if isinstance(step, nn.Conv2d)]


def _after(network: nn.Sequential, shapes: list[Shape]) -> Iterator[CnnLayer]:
    """The layers after the first convolution, the bias of each where its pooling, if it has one, is done."""
    waiting: nn.Conv2d | None = None
    for place, step in enumerate(network):
        if waiting is not None and not isinstance(step, nn.MaxPool2d):
            yield Bias(waiting.out_channels)
            waiting = None
        if isinstance(step, nn.Conv2d) and step.bias is not None:
            waiting = step
        if place and not isinstance(step, nn.Flatten):
            yield _layer(step, shapes[place - isinstance(step, nn.Linear)])


def _layer(step: nn.Module, given: Shape) -> CnnLayer:
    """The layer for a step; a linear one is told the shape before its flattening."""
    if isinstance(step, nn.Conv2d):
        return FourierConvolution(step, given)
    if isinstance(step, nn.Linear):
        return Dense(step, given)
    return Pool(given) if isinstance(step, nn.MaxPool2d) else Relu()


KNOWN = (nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Linear)


def rewritten(module: nn.Module) -> nn.Sequential | None:
    """The same function in channels_last with pooling before ReLU, or None for what is not a plain CNN."""
    if not only_plain_layers(module, KNOWN) or not any(isinstance(step, nn.Conv2d) for step in module):
        return None
    steps = [copy.deepcopy(step) for step in module]
    for place in range(1, len(steps)):
        if isinstance(steps[place], nn.MaxPool2d) and isinstance(steps[place - 1], nn.ReLU):
            steps[place - 1], steps[place] = steps[place], steps[place - 1]
    return in_channels_last(nn.Sequential(*steps))


def in_channels_last(module: Module) -> Module:
    """The same module, the weights of its convolutions with channels innermost in memory."""
    for parameter in module.parameters():
        if parameter.dim() == 4:
            parameter.data = channels_last(parameter.data)
    return module


BLIND = (*KNOWN, nn.BatchNorm2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Identity)
CONTAINERS = (nn.Sequential, Residual)


def takes_channels_last(module: nn.Module) -> bool:
    """Whether a module has convolutions, and nothing in it sees how numbers lie in memory.

    A user's own ``forward`` may: after a convolution in channels_last ``x.view(n, -1)`` fails.
    """
    steps = list(module.modules())
    known = all(type(step) in (*BLIND, *CONTAINERS) and as_made(step) for step in steps)
    return known and any(isinstance(step, nn.Conv2d) for step in steps)


def channels_last(images: Tensor) -> Tensor:
    """The images with channels innermost in memory, and strides that say so.

    With one channel both layouts are the same bytes and torch keeps the strides of the other one, by which
    the slow kernels would be chosen; so the strides are set by hand.
    """
    n, c, h, w = images.shape
    packed = images.permute(0, 2, 3, 1).contiguous()
    return packed.as_strided((n, c, h, w), (h * w * c, 1, w * c, c))


class ChannelsLast:
    """A rewritten CNN, for the engine of CNNs."""

    def __init__(self, module: nn.Sequential) -> None:
        self._module = module
        self.weights: Sequence[Tensor] = list(module.parameters())
        self.as_torch = self.weights

    def gradients(self, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        """Of the mean cross-entropy of a batch, for every weight."""
        loss = nn.functional.cross_entropy(self._module(channels_last(x)), y)
        return torch.autograd.grad(loss, self.weights)


FROM = 16  # examples in a batch: with fewer, transforming the kernels costs more than it saves


class Network(Protocol):
    """A CNN whose weights may lie in memory in an order of its own."""

    @property
    def weights(self) -> Sequence[Tensor]:
        """The weights as they lie in memory, in the order of the module's parameters."""
        ...

    @property
    def as_torch(self) -> Sequence[Tensor]:
        """The same memory, each weight's numbers in the order torch has them."""
        ...

    def gradients(self, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        """Of the mean cross-entropy of a batch, for every weight, as they lie in memory."""
        ...


class CnnEngine:
    """Trains a CNN; the result is that of the plain loop on the module up to rounding.

    ``for_large`` computes it for clients whose batches have FROM examples or more, if there is such a
    network. Which one a client gets depends on the client alone, so its bits do too.
    """

    together = 1

    def __init__(
        self, network: Network, for_large: Network | None, local: LocalTraining, *, seed: int
    ) -> None:
        self._network, self._for_large = network, for_large or network
        self._local, self._seed = local, seed

    def network_for(self, examples: int) -> Network:
        """What trains a client with this many examples."""
        return self._for_large if min(examples, self._local.batch) >= FROM else self._network

    def train(self, start: Tensor, tasks: Sequence[Task], *, round: int, epochs: int) -> None:
        """Train every task from ``start`` and write local minus start into its row."""
        for task in tasks:
            network = self.network_for(len(task.y))
            write(network.as_torch, start)
            descent = Sgd(network.weights, self._local)
            for order in orders(self._seed, round, task.client, count=len(task.y), epochs=epochs):
                for rows in torch.split(order, self._local.batch):
                    x, y = task.x.index_select(0, rows), task.y.index_select(0, rows)
                    descent.step(network.gradients(x, y))
            torch.sub(read(network.as_torch), start, out=task.update)
