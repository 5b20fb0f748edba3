"""The first layer of stacked MLPs in its dual form: one product a step in place of two, and a shorter one.

After some steps of SGD the layer's weight is W₀ − Σ dᵢ·xᵢᵀ, where dᵢ sums the errors at example i, each times
its learning rate, and the bias is b₀ − Σ dᵢ. Its output at example j is then

    zⱼ = W₀·xⱼ + b₀ − Σ (xⱼ·xᵢ + 1)·dᵢ

so with the kernel of the products xⱼ·xᵢ + 1, the same in every round, a step costs the sum alone: as many
products an example and output as the client has examples, in place of twice as many as it has features.
The weight itself is made once, at the end.

A client's examples are laid out in the order of its first epoch: in that epoch the d of those not yet seen
are 0, and the sum ends before them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedcrab.simulate.stack import Stack, pass_relu

STEP = 32  # examples are filled up to a multiple of this, so that clients of about one size are stacked


def columns_of(examples: int) -> int:
    """The width of the kernel of so many examples."""
    return -(-examples // STEP) * STEP


def kernel_of(x: Tensor, *, bias: bool) -> Tensor:
    """The products of all examples with one another, with a feature that is always 1 if there is a bias."""
    kernel = torch.mm(x, x.mT)
    return kernel.add_(1) if bias else kernel


class DualLayer:
    """The first layer of the clients of a stack, and their labels."""

    def __init__(self, clients: int, columns: int, outputs: int, *, batch: int) -> None:
        self._kernels = torch.empty(clients, columns, columns)
        self._before = torch.empty(clients, columns, outputs)
        self._moved = torch.empty(clients, columns, outputs)
        self._labels = torch.zeros(clients, columns, 1, dtype=torch.int64)
        self._products = torch.empty(clients * batch, columns)
        self._output, self._error = (torch.empty(clients * batch, outputs) for _ in range(2))

    def load(self, place: int, kernel: Tensor, before: Tensor, labels: Tensor, order: Tensor) -> None:
        """Lay out a client: its kernel, W₀·x + b₀ of its examples, their labels."""
        count, laid = len(order), self._kernels[place]
        laid[:count, :count] = kernel.index_select(0, order).index_select(1, order)
        laid[:, count:] = 0
        self._moved[place] = 0
        torch.index_select(before, 0, order, out=self._before[place, :count])
        self._labels[place, :count, 0] = labels[order]

    def places(self, place: int, first: Tensor, order: Tensor) -> Tensor:
        """Where the examples of this order are laid out, among those of all clients."""
        return torch.argsort(first)[order] + place * self._moved.shape[1]

    def moved(self, place: int, order: Tensor) -> Tensor:
        """The d of each of a client's examples, which were laid out in this order."""
        laid = self._moved[place, : len(order)]
        return torch.empty_like(laid).index_copy_(0, order, laid)

    def first_step(self, above: Stack, clients: slice, rows: slice, rate: float) -> None:
        """A step of the first epoch, on the examples that follow those seen so far."""
        z, error = self._room(clients, rows.stop - rows.start)
        z.copy_(self._before[clients, rows])
        if rows.start:
            seen = slice(0, rows.start)
            z.baddbmm_(self._kernels[clients, rows, seen], self._moved[clients, seen], alpha=-1)
        self._learn(above, clients, z, self._labels[clients, rows], error)
        torch.mul(error, rate, out=self._moved[clients, rows])

    def step(self, above: Stack, clients: slice, places: Tensor, rate: float) -> None:
        """A step of a later epoch, on the examples at these places, as many of each client."""
        z, error = self._room(clients, places.shape[1])
        at, (columns, outputs) = places.reshape(-1), self._moved.shape[1:]
        products = self._products[: len(at)]
        torch.index_select(self._kernels.view(-1, columns), 0, at, out=products)
        torch.index_select(self._before.view(-1, outputs), 0, at, out=z.view(-1, outputs))
        z.baddbmm_(products.view(*places.shape, columns), self._moved[clients], alpha=-1)
        self._learn(above, clients, z, self._labels.view(-1)[places][:, :, None], error)
        self._moved.view(-1, outputs).scatter_add_(
            0, at[:, None].expand(-1, outputs), error.mul_(rate).view(-1, outputs)
        )

    def _room(self, clients: slice, rows: int) -> tuple[Tensor, Tensor]:
        shape = (clients.stop - clients.start, rows, self._moved.shape[2])
        size = shape[0] * rows
        return self._output[:size].view(shape), self._error[:size].view(shape)

    @staticmethod
    def _learn(above: Stack, clients: slice, z: Tensor, labels: Tensor, error: Tensor) -> None:
        """Through the ReLU, a step of the layers above, and back."""
        above.step(clients, z.relu_(), labels, below=error)
        pass_relu(error, z)
