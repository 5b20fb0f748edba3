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

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcrab.simulate.kept import Room
from fedcrab.simulate.stack import Stack, pass_relu

STEP = 32  # examples are filled up to a multiple of this, so that clients of about one size are stacked


def columns_of(examples: int) -> int:
    """The width of the kernel of so many examples."""
    return -(-examples // STEP) * STEP


def kernel_of(x: Tensor, *, bias: bool) -> Tensor:
    """The products of all examples with one another, with a feature that is always 1 if there is a bias.

    Filled up with zeros to its columns, and to as many rows.
    """
    columns, count = columns_of(len(x)), len(x)
    kernel = x.new_zeros(columns, columns)
    torch.mm(x, x.mT, out=kernel[:count, :count])
    if bias:
        kernel[:count, :count] += 1
    return kernel


@dataclass(frozen=True, slots=True)
class _Views:
    """What a step of some clients on so many rows of each works with; ``flat_`` has the rows of all."""

    flat_products: Tensor
    products: Tensor
    flat_z: Tensor
    z: Tensor
    flat_error: Tensor
    error: Tensor
    moved: Tensor


class DualLayer:
    """The first layer of the clients of a stack, and their labels."""

    def __init__(self, clients: int, columns: int, outputs: int, *, batch: int, room: Room) -> None:
        self._kernels, self._before, self._moved, self._products, self._z, self._error, self._rows = (
            room.lend(
                (clients * columns, columns),
                (clients * columns, outputs),
                (clients * columns, outputs),
                (clients * batch, columns),
                (clients * batch, outputs),
                (clients * batch, outputs),
                (columns, columns),
            )
        )
        self._moved.zero_()
        self._shape = (clients, columns)
        self._labels = torch.zeros(clients * columns, dtype=torch.int64)
        self._ranks, self._places = (torch.zeros(self._shape, dtype=torch.int64) for _ in range(2))
        self._shuffled = self._labels
        self._views: dict[tuple[int, int, int], _Views] = {}

    def load(self, place: int, kernel: Tensor, before: Tensor, labels: Tensor, order: Tensor) -> None:
        """Lay out a client: its kernel, W₀·x + b₀ of its examples, their labels."""
        count, columns = len(order), self._shape[1]
        begin = place * columns
        here, whole = slice(begin, begin + count), torch.arange(columns)
        whole[:count] = order
        torch.index_select(kernel, 0, whole, out=self._rows)
        torch.index_select(self._rows, 1, whole, out=self._kernels[begin : begin + columns])
        torch.index_select(before, 0, order, out=self._before[here])
        torch.index_select(labels, 0, order, out=self._labels[here])
        self._ranks[place, order] = torch.arange(begin, begin + count)

    def shuffle(self, orders: Sequence[Tensor]) -> None:
        """Begin a later epoch, in which each client sees its examples in this order."""
        for place, order in enumerate(orders):
            torch.index_select(self._ranks[place], 0, order, out=self._places[place, : len(order)])
        self._shuffled = self._labels[self._places][:, :, None]

    def moved(self, place: int, order: Tensor) -> Tensor:
        """The d of each of a client's examples, which were laid out in this order."""
        laid = self._of_each(self._moved)[place, : len(order)]
        return torch.empty_like(laid).index_copy_(0, order, laid)

    def first_step(self, above: Stack, clients: slice, rows: slice, rate: float) -> None:
        """A step of the first epoch, on the examples that follow those seen so far."""
        views = self._at_work(clients, rows)
        views.z.copy_(self._of_each(self._before)[clients, rows])
        if rows.start:
            seen = self._of_each(self._kernels)[clients, rows, : rows.start]
            views.z.baddbmm_(seen, views.moved[:, : rows.start], alpha=-1)
        self._learn(above, clients, views, self._of_each(self._labels[:, None])[clients, rows])
        torch.mul(views.error, rate, out=views.moved[:, rows])

    def step(self, above: Stack, clients: slice, rows: slice, rate: float) -> None:
        """A step of a later epoch, on these examples in its order."""
        views, at = self._at_work(clients, rows), self._places[clients, rows].reshape(-1)
        torch.index_select(self._kernels, 0, at, out=views.flat_products)
        torch.index_select(self._before, 0, at, out=views.flat_z)
        views.z.baddbmm_(views.products, views.moved, alpha=-1)
        self._learn(above, clients, views, self._shuffled[clients, rows])
        errors = views.flat_error.mul_(rate)
        self._moved.scatter_add_(0, at[:, None].expand_as(errors), errors)

    def _of_each(self, flat: Tensor) -> Tensor:
        """Rows of all clients, by client."""
        return flat.view(*self._shape, -1)

    def _at_work(self, clients: slice, rows: slice) -> _Views:
        """Made once for every set of clients and number of rows."""
        key = (clients.start, clients.stop, rows.stop - rows.start)
        if key not in self._views:
            self._views[key] = self._make_views(clients, rows.stop - rows.start)
        return self._views[key]

    def _make_views(self, clients: slice, rows: int) -> _Views:
        count = clients.stop - clients.start
        shape, moved = (count, rows, -1), self._of_each(self._moved)[clients]
        products, z, error = (flat[: count * rows] for flat in (self._products, self._z, self._error))
        return _Views(products, products.view(shape), z, z.view(shape), error, error.view(shape), moved)

    @staticmethod
    def _learn(above: Stack, clients: slice, views: _Views, labels: Tensor) -> None:
        """Through the ReLU, a step of the layers above, and back."""
        above.step(clients, views.z.relu_(), labels, below=views.error)
        pass_relu(views.error, views.z)
