"""Features that none of a client's examples uses: their weights get no gradient, so they need no arithmetic.

A quarter of the pixels of some hundred MNIST images is black in all of them. What is left is the same sum
without its zeros.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedcrab.simulate.stack import LINE, Layer, moved

STEP = 32  # the kept ones are filled up to a multiple of this, so that clients of one size are stacked


def used_features(x: Tensor) -> Tensor:
    """The features that are not 0 in every example, and as many others as make a multiple of STEP."""
    unused = torch.from_numpy(~x.numpy().any(axis=0))
    wanted = -(-int((~unused).sum()) // STEP) * STEP
    return torch.argsort(unused.to(torch.uint8), stable=True)[: max(STEP, wanted)].sort().values


class Narrowing:
    """From the vectors of a model to those of one whose first layer has only some inputs, and back.

    The narrow model has a whole number of cache lines of inputs; those too many are 0 in every example.
    """

    def __init__(self, layers: list[Layer], inputs: int) -> None:
        first = layers[0]
        self._outputs, self._all, self._inputs = first.outputs, first.inputs, inputs
        self.width = -(-inputs // LINE) * LINE
        gone = first.outputs * (first.inputs - self.width)
        below, *above = moved(layers, -gone)
        self.layers = [replace(below, inputs=self.width, weight=first.weight), *above]

    def narrow(self, model: Tensor, features: Tensor) -> Tensor:
        """The model with only these inputs."""
        weight, rest = model[: self._outputs * self._all], model[self._outputs * self._all :]
        narrow = weight.new_zeros(self._outputs * self.width + len(rest))
        self._weight(narrow).copy_(weight.view(-1, self._all).index_select(1, features))
        narrow[self._outputs * self.width :] = rest
        return narrow

    def examples(self, x: Tensor, features: Tensor, out: Tensor) -> None:
        """The examples with only these features."""
        if self.width == self._inputs:
            torch.index_select(x, 1, features, out=out)
        else:
            out[:, : self._inputs] = x.index_select(1, features)
            out[:, self._inputs :] = 0

    def widen(self, update: Tensor, features: Tensor, out: Tensor) -> None:
        """An update of the narrow model as one of the whole model."""
        after = self._outputs * self._all
        everywhere = features.expand(self._outputs, -1)
        out[:after].zero_().view(-1, self._all).scatter_(1, everywhere, self._weight(update))
        out[after:] = update[self._outputs * self.width :]

    def _weight(self, narrow: Tensor) -> Tensor:
        return narrow[: self._outputs * self.width].view(-1, self.width)[:, : self._inputs]
