"""A CNN with the batch innermost, without autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedcrab.simulate.cnn.layers import Layer, Unfolded


class BatchLast:
    """A CNN, for the engine of CNNs: the first convolution, and all that follows."""

    def __init__(self, first: Unfolded, rest: Sequence[Layer]) -> None:
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
