"""Plain CNNs, with autograd but laid out for the processor.

Two rewritings, neither of which changes the function: tensors in channels_last, which the convolutions
and the pooling on a processor prefer by far (a first layer of one channel most of all), and ReLU after
max-pooling in place of before it (they commute, and it then has a quarter of the work).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedcrab.simulate.untouched import untouched

KNOWN = (nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Linear)


def rewritten(module: nn.Module) -> nn.Sequential | None:
    """The same function in channels_last with pooling before ReLU, or None for what is not a plain CNN."""
    if not untouched(module, KNOWN) or not any(isinstance(step, nn.Conv2d) for step in module):
        return None
    steps = [copy.deepcopy(step) for step in module]
    for place in range(1, len(steps)):
        if isinstance(steps[place], nn.MaxPool2d) and isinstance(steps[place - 1], nn.ReLU):
            steps[place - 1], steps[place] = steps[place], steps[place - 1]
    swapped = nn.Sequential(*steps)
    for parameter in swapped.parameters():
        if parameter.dim() == 4:
            parameter.data = channels_last(parameter.data)
    return swapped


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
