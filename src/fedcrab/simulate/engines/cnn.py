"""Small CNNs, one client after the other.

Two rewritings are used; neither changes the function:

- The batch is the innermost dimension, without autograd. Supported are two or more convolutions, each with
  ReLU and pooling in either order, then linear layers with ReLU between. Bias and ReLU commute with pooling
  and come after it, on a quarter of the numbers.
- Other plain CNNs use autograd, with tensors in channels_last and ReLU after max-pooling. Convolutions and
  pooling on a CPU are much faster in channels_last, most of all a first layer with one channel.
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
    """A CNN with the batch innermost: the first convolution, and the layers that follow."""

    def __init__(self, first: UnfoldedConvolution, rest: Sequence[CnnLayer]) -> None:
        self._first, self._rest = first, rest
        self.weights = first.weights + [weight for layer in rest for weight in layer.weights]
        self.as_torch = first.as_torch + [weight for layer in rest for weight in layer.as_torch]

    def gradients(self, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        """Return the gradients of a batch's mean cross-entropy, one per weight."""
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
    """Return (softmax − 1 at the label) / batch."""
    n = len(y)
    gradient = torch.softmax(logits, 0)
    gradient.scatter_add_(0, y[None], torch.full((1, n), -1.0))
    return gradient.div_(n)


LETTERS: dict[type, str] = {nn.Conv2d: "c", nn.MaxPool2d: "p", nn.ReLU: "r", nn.Flatten: "f", nn.Linear: "l"}
POOLS = ((2, 2, 0, 1), ((2, 2), (2, 2), 0, 1))  # size, stride, padding, dilation
PATTERN = re.compile("(cp?r?){2,}fl(rl)*")


def batch_last(network: nn.Sequential, shape: Sequence[int]) -> BatchLast | None:
    """Return a rewritten CNN for examples of a shape, or None if that is impossible or not faster."""
    if not follows(network, PATTERN):
        return None
    shapes = input_shapes(network, shape)
    if shapes is None or not all(
        fourier_is_faster(step, given) for step, given in _convolutions(network, shapes)[1:]
    ):
        return None
    first, given = _convolutions(network, shapes)[0]
    return BatchLast(UnfoldedConvolution(first, given), list(_after(network, shapes)))


def follows(network: nn.Sequential, pattern: re.Pattern[str]) -> bool:
    """Return whether the layers have this order, in LETTERS, and no settings that are not supported."""
    kinds = "".join(LETTERS[type(step)] for step in network)
    return pattern.fullmatch(kinds) is not None and all(map(_plain, network))


def _plain(step: nn.Module) -> bool:
    """Return whether a layer has the default settings for everything that is not supported here."""
    if isinstance(step, nn.Conv2d):
        known = (step.stride, step.dilation, step.groups, step.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
        return known and not isinstance(step.padding, str)
    if isinstance(step, nn.MaxPool2d):
        sizes = (step.kernel_size, step.stride, step.padding, step.dilation)
        return sizes in POOLS and not step.ceil_mode and not step.return_indices
    return not isinstance(step, nn.Flatten) or (step.start_dim, step.end_dim) == (1, -1)


def input_shapes(network: nn.Sequential, shape: Sequence[int]) -> list[Shape] | None:
    """Return the input shape of each layer, 1 × 1 pixels after flattening; None if such examples do not fit.

    The module itself will report the error when it is used.
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
    """Yield the layers after the first convolution; each bias comes after its pooling, if any."""
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
    """Return the layer for a step; a linear layer needs the shape before flattening."""
    if isinstance(step, nn.Conv2d):
        return FourierConvolution(step, given)
    if isinstance(step, nn.Linear):
        return Dense(step, given)
    return Pool(given) if isinstance(step, nn.MaxPool2d) else Relu()


KNOWN = (nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Linear)


def rewritten(module: nn.Module) -> nn.Sequential | None:
    """Return the same function in channels_last with pooling before ReLU; None if not a plain CNN."""
    if not only_plain_layers(module, KNOWN) or not any(isinstance(step, nn.Conv2d) for step in module):
        return None
    steps = [copy.deepcopy(step) for step in module]
    for place in range(1, len(steps)):
        if isinstance(steps[place], nn.MaxPool2d) and isinstance(steps[place - 1], nn.ReLU):
            steps[place - 1], steps[place] = steps[place], steps[place - 1]
    return in_channels_last(nn.Sequential(*steps))


def in_channels_last(module: Module) -> Module:
    """Return the same module, with channels innermost in the weights of its convolutions."""
    for parameter in module.parameters():
        if parameter.dim() == 4:
            parameter.data = channels_last(parameter.data)
    return module


BLIND = (*KNOWN, nn.BatchNorm2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Identity)
CONTAINERS = (nn.Sequential, Residual)


def takes_channels_last(module: nn.Module) -> bool:
    """Return whether a module has convolutions, and nothing in it depends on the memory layout.

    A user's own ``forward`` may: after a convolution in channels_last, ``x.view(n, -1)`` fails.
    """
    steps = list(module.modules())
    known = all(type(step) in (*BLIND, *CONTAINERS) and as_made(step) for step in steps)
    return known and any(isinstance(step, nn.Conv2d) for step in steps)


def channels_last(images: Tensor) -> Tensor:
    """Return the images with channels innermost in memory, and matching strides.

    With one channel both layouts have the same bytes, and torch keeps the strides of the other one, which
    would select the slow kernels. So the strides are set by hand.
    """
    n, c, h, w = images.shape
    packed = images.permute(0, 2, 3, 1).contiguous()
    return packed.as_strided((n, c, h, w), (h * w * c, 1, w * c, c))


class ChannelsLast:
    """A rewritten CNN in channels_last."""

    def __init__(self, module: nn.Sequential) -> None:
        self._module = module
        self.weights: Sequence[Tensor] = list(module.parameters())
        self.as_torch = self.weights

    def gradients(self, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        """Return the gradients of a batch's mean cross-entropy, one per weight."""
        loss = nn.functional.cross_entropy(self._module(channels_last(x)), y)
        return torch.autograd.grad(loss, self.weights)


FROM = 16  # examples per batch; with fewer, transforming the kernels costs more than it saves


class Network(Protocol):
    """A CNN whose weights may have their own order in memory."""

    @property
    def weights(self) -> Sequence[Tensor]:
        """The weights as they are in memory, in the order of the module's parameters."""
        ...

    @property
    def as_torch(self) -> Sequence[Tensor]:
        """The same memory, with the numbers of each weight in torch's order."""
        ...

    def gradients(self, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        """Return the gradients of a batch's mean cross-entropy, one per weight, in the order in memory."""
        ...


class CnnEngine:
    """Trains a CNN; the result equals that of the plain loop up to rounding.

    ``for_large``, if there is one, trains clients whose batches have FROM examples or more. The choice
    depends on the client only, and so do its bits.
    """

    together = 1

    def __init__(
        self, network: Network, for_large: Network | None, local: LocalTraining, *, seed: int
    ) -> None:
        self._network, self._for_large = network, for_large or network
        self._local, self._seed = local, seed

    def network_for(self, examples: int) -> Network:
        """Return the network that trains a client with this many examples."""
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
