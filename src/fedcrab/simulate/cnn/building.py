"""Which CNNs can be computed with the batch innermost, and of which layers.

A convolution, its ReLU and its pooling in either order; two or more of such; then linear layers with ReLU
between. Bias and ReLU come after the pooling, with which they commute, on a quarter of the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from fedcrab.simulate.cnn.batch_last import BatchLast
from fedcrab.simulate.cnn.layers import Bias, Dense, Layer, Pool, Relu, Shape, Unfolded
from fedcrab.simulate.cnn.spectral import Spectral, pays

LETTERS: dict[type, str] = {nn.Conv2d: "c", nn.MaxPool2d: "p", nn.ReLU: "r", nn.Flatten: "f", nn.Linear: "l"}
POOLS = ((2, 2, 0, 1), ((2, 2), (2, 2), 0, 1))  # size, stride, padding, dilation
PATTERN = re.compile("(cp?r?){2,}fl(rl)*")


def batch_last(network: nn.Sequential, shape: Sequence[int]) -> BatchLast | None:
    """A rewritten CNN for examples of a shape, or None where this cannot be done or does not pay."""
    kinds = "".join(LETTERS[type(step)] for step in network)
    if not PATTERN.fullmatch(kinds) or not all(map(_plain, network)):
        return None
    shapes = _shapes(network, shape)
    if shapes is None or not all(pays(step, given) for step, given in _convolutions(network, shapes)[1:]):
        return None
    first, given = _convolutions(network, shapes)[0]
    return BatchLast(Unfolded(first, given), list(_after(network, shapes)))


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


def _after(network: nn.Sequential, shapes: list[Shape]) -> Iterator[Layer]:
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


def _layer(step: nn.Module, given: Shape) -> Layer:
    """The layer for a step; a linear one is told the shape before its flattening."""
    if isinstance(step, nn.Conv2d):
        return Spectral(step, given)
    if isinstance(step, nn.Linear):
        return Dense(step, given)
    return Pool(given) if isinstance(step, nn.MaxPool2d) else Relu()
