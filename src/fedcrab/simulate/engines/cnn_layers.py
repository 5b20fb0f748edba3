"""The layers of a CNN on images (height, width, channels, batch), each with its gradient.

The batch is innermost, so every step is a product with a long side or runs over contiguous numbers. A layer
stores what its backward pass needs from the last forward pass, and modifies its input if that is allowed.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]  # height, width, channels
Backward = tuple[Tensor, list[Tensor]]  # gradients: of the input, of each weight


class CnnLayer(Protocol):
    """One step of a network."""

    weights: list[Tensor]  # as they are in memory
    as_torch: list[Tensor]  # the same memory in torch's order

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        ...

    def backward(self, gradient: Tensor) -> Backward:
        """Return the gradients, given that of the output."""
        ...


def padding_of(convolution: nn.Conv2d) -> tuple[int, int]:
    """Return how many rows and columns of zeros are put around the images."""
    assert not isinstance(convolution.padding, str)
    return convolution.padding[0], convolution.padding[1]


class UnfoldedConvolution:
    """A first convolution with few channels, without its bias: one product per row of the output.

    Pixels are repeated for every column of the kernel. Its rows are then windows into the same memory.
    """

    def __init__(self, convolution: nn.Conv2d, shape: Shape) -> None:
        outputs, channels, *kernel = convolution.weight.shape
        self._kernel, self._padding = kernel, padding_of(convolution)
        above, beside = self._padding
        self.shape = (shape[0] + 2 * above - kernel[0] + 1, shape[1] + 2 * beside - kernel[1] + 1, outputs)
        weight = torch.empty(outputs, *kernel, channels)
        self.weights, self.as_torch = [weight], [weight.permute(0, 3, 1, 2)]
        self._windows = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """Take images in torch's order: (batch, channels, height, width)."""
        height, width, outputs = self.shape
        self._windows = self._unfolded(x)
        flat = self.weights[0].view(1, outputs, -1).expand(height, -1, -1)
        rows = torch.bmm(flat, self._windows)
        return rows.view(height, outputs, width, -1).transpose(1, 2)

    def backward(self, gradient: Tensor) -> list[Tensor]:
        """Return the gradient of the weight; that of the images is not needed."""
        height, _, outputs = self.shape
        rows = gradient.transpose(1, 2).reshape(height, outputs, -1)
        by_row = torch.bmm(rows, self._windows.transpose(1, 2))
        return [by_row.sum(0).view(self.weights[0].shape)]

    def _unfolded(self, x: Tensor) -> Tensor:
        """Return (rows of the output, kernel · channels, columns of the output · batch)."""
        height, width, _ = self.shape
        (rows, columns), (above, beside) = self._kernel, self._padding
        n, channels = x.shape[:2]
        x = x.reshape(n, -1).t().contiguous().view(*x.shape[1:], n)
        if above or beside:
            x = nn.functional.pad(x, (0, 0, beside, beside, above, above))
        plane, line, pixel, _ = x.stride()
        unfolded = x.as_strided((x.shape[1], columns, channels, width, n), (line, pixel, plane, pixel, 1))
        step = columns * channels * width * n
        window = (height, rows * columns * channels, width * n)
        return unfolded.contiguous().as_strided(window, (step, width * n, 1))


class Pool:
    """The maximum of each 2 × 2 pixels; among equal ones the first gets the gradient, as in torch."""

    def __init__(self, shape: Shape) -> None:
        self.weights: list[Tensor] = []
        self.as_torch: list[Tensor] = []
        self.shape = (shape[0] // 2, shape[1] // 2, shape[2])
        self._x = self._sides = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """Reduce neighbours in a row first, then rows."""
        left, right = self._halves(x)
        self._x, self._sides = x, torch.maximum(left, right)
        return torch.maximum(self._sides[0::2], self._sides[1::2], out=torch.empty(*self.shape, x.shape[-1]))

    def backward(self, gradient: Tensor) -> Backward:
        """Reverse the two reductions; a last odd row or column gets no gradient."""
        sides = torch.empty_like(self._sides)
        _divide(gradient, self._sides[0::2], self._sides[1::2], sides[0::2], sides[1::2])
        before = torch.empty_like(self._x)
        before[2 * self.shape[0] :] = 0
        before[:, 2 * self.shape[1] :] = 0
        _divide(sides, *self._halves(self._x), *self._halves(before))
        return before, []

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x[: 2 * self.shape[0], : 2 * self.shape[1]]
        return whole[:, 0::2], whole[:, 1::2]


def _divide(gradient: Tensor, first: Tensor, second: Tensor, to_first: Tensor, to_second: Tensor) -> None:
    """Give each gradient to the larger of two values, in place."""
    torch.ge(first, second, out=to_first)
    to_first.mul_(gradient)
    torch.sub(gradient, to_first, out=to_second)


class Bias:
    """One number per channel."""

    def __init__(self, channels: int) -> None:
        self.weights = self.as_torch = [torch.empty(channels)]

    def forward(self, x: Tensor) -> Tensor:
        """Add the bias in place."""
        return x.add_(self.weights[0][:, None])

    def backward(self, gradient: Tensor) -> Backward:
        """Return the sum over pixels and batch."""
        return gradient, [gradient.sum((0, 1, 3))]


class Relu:
    """Sets negative values to 0."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []
        self.as_torch: list[Tensor] = []
        self._x = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """Apply it in place."""
        self._x = x.relu_()
        return self._x

    def backward(self, gradient: Tensor) -> Backward:
        """Return the gradient where the output is above 0."""
        return torch.ops.aten.threshold_backward(gradient, self._x, 0), []


class Dense:
    """A linear layer on (height, width, channels, batch), or on (features, batch)."""

    def __init__(self, linear: nn.Linear, shape: Shape) -> None:
        weight = torch.empty(linear.out_features, *shape)
        self.weights, self.as_torch = [weight], [weight.permute(0, 3, 1, 2)]
        if linear.bias is not None:
            bias = torch.empty(linear.out_features)
            self.weights, self.as_torch = [weight, bias], [*self.as_torch, bias]
        self._x = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """Return (outputs, batch)."""
        self._x = x
        weight, *bias = self.weights
        product = torch.mm(weight.flatten(1), x.view(-1, x.shape[-1]))
        return product.add_(bias[0][:, None]) if bias else product

    def backward(self, gradient: Tensor) -> Backward:
        """Return the products with the transposes."""
        weight, *bias = self.weights
        flat = self._x.view(-1, gradient.shape[-1])
        of_weight = torch.mm(gradient, flat.t()).view(weight.shape)
        before = torch.mm(weight.flatten(1).t(), gradient).view(self._x.shape)
        return before, [of_weight, *(gradient.sum(1) for _ in bias)]
