"""The first layer of stacked MLPs in its dual form: one shorter product per step instead of two.

After some steps of SGD the layer's weight is W₀ − Σ dᵢ·xᵢᵀ, where dᵢ sums the errors at example i, each times
its learning rate, and the bias is b₀ − Σ dᵢ. Its output at example j is then

    zⱼ = W₀·xⱼ + b₀ − Σ (xⱼ·xᵢ + 1)·dᵢ

The kernel of the products xⱼ·xᵢ + 1 is the same in every round, so a step only costs the sum: as many
products per example and output as the client has examples, instead of twice as many as it has features. The
weight itself is computed once, at the end. The layers above are trained as usual.

A client's examples are stored in the order of its first epoch. In that epoch the d of unseen examples are 0,
so the sum ends before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcrab.simulate.engines.mlp_step import (
    LINE,
    ClientCache,
    LinearLayer,
    Stack,
    UsedFeatures,
    Workspace,
    moved,
    pass_relu,
)
from fedcrab.simulate.engines.plain import LocalTraining, Task

STEP = 32  # examples are padded to a multiple of this, so that clients of similar size can be stacked


def columns_of(examples: int) -> int:
    """Return the width of the kernel of this many examples."""
    return -(-examples // STEP) * STEP


def kernel_of(x: Tensor, *, bias: bool) -> Tensor:
    """Return the products of all examples with each other, with a constant feature 1 if there is a bias.

    Padded with zeros to the kernel's width, and to as many rows.
    """
    columns, count = columns_of(len(x)), len(x)
    kernel = x.new_zeros(columns, columns)
    torch.mm(x, x.mT, out=kernel[:count, :count])
    if bias:
        kernel[:count, :count] += 1
    return kernel


@dataclass(frozen=True, slots=True)
class _Views:
    """The tensors for a step of some clients with this many rows each; ``flat_`` has the rows of all."""

    flat_products: Tensor
    products: Tensor
    flat_z: Tensor
    z: Tensor
    flat_error: Tensor
    error: Tensor
    moved: Tensor


class DualLayer:
    """The first layer of a stack's clients, and their labels."""

    def __init__(self, clients: int, columns: int, outputs: int, *, batch: int, room: Workspace) -> None:
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
        """Store a client: its kernel, W₀·x + b₀ of its examples, their labels."""
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
        """Start a later epoch, in which each client sees its examples in this order."""
        for place, order in enumerate(orders):
            torch.index_select(self._ranks[place], 0, order, out=self._places[place, : len(order)])
        self._shuffled = self._labels[self._places][:, :, None]

    def moved(self, place: int, order: Tensor) -> Tensor:
        """Return the d of each of a client's examples, which were stored in this order."""
        laid = self._of_each(self._moved)[place, : len(order)]
        return torch.empty_like(laid).index_copy_(0, order, laid)

    def first_step(self, above: Stack, clients: slice, rows: slice, rate: float) -> None:
        """Make a step of the first epoch, on the next unseen examples."""
        views = self._at_work(clients, rows)
        views.z.copy_(self._of_each(self._before)[clients, rows])
        if rows.start:
            seen = self._of_each(self._kernels)[clients, rows, : rows.start]
            views.z.baddbmm_(seen, views.moved[:, : rows.start], alpha=-1)
        self._learn(above, clients, views, self._of_each(self._labels[:, None])[clients, rows])
        torch.mul(views.error, rate, out=views.moved[:, rows])

    def step(self, above: Stack, clients: slice, rows: slice, rate: float) -> None:
        """Make a step of a later epoch, on these examples in its order."""
        views, at = self._at_work(clients, rows), self._places[clients, rows].reshape(-1)
        torch.index_select(self._kernels, 0, at, out=views.flat_products)
        torch.index_select(self._before, 0, at, out=views.flat_z)
        views.z.baddbmm_(views.products, views.moved, alpha=-1)
        self._learn(above, clients, views, self._shuffled[clients, rows])
        errors = views.flat_error.mul_(rate)
        self._moved.scatter_add_(0, at[:, None].expand_as(errors), errors)

    def _of_each(self, flat: Tensor) -> Tensor:
        """Return the rows of all clients, by client."""
        return flat.view(*self._shape, -1)

    def _at_work(self, clients: slice, rows: slice) -> _Views:
        """Return the tensors for a step; made once per set of clients and number of rows."""
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
        """Run the ReLU, a step of the layers above, and back."""
        above.step(clients, views.z.relu_(), labels, below=views.error)
        pass_relu(views.error, views.z)


@dataclass(frozen=True, slots=True)
class StackMember:
    """A task, the features that its examples use, and whether its first layer is trained in dual form."""

    task: Task
    x: Tensor
    features: Tensor
    dual: bool

    @property
    def count(self) -> int:
        """The number of examples."""
        return len(self.x)

    @property
    def columns(self) -> int:
        """The width of its kernel in the dual form."""
        return columns_of(self.count) if self.dual else 0

    @property
    def kind(self) -> tuple[int, int]:
        """Members of the same kind can be stacked: the same products, of the same sizes."""
        return self.columns, 0 if self.dual else len(self.features)


def narrowed(narrowing: UsedFeatures, learner: StackMember, kept: ClientCache) -> Tensor:
    """Return the examples of a member with only the features that they use."""
    if learner.x.shape[1] == narrowing.width == len(learner.features):
        return learner.x

    def make() -> Tensor:
        x = learner.x.new_empty(learner.count, narrowing.width)
        narrowing.examples(learner.x, learner.features, x)
        return x

    return kept.get(learner.task.held, make)


def epoch_steps(counts: Sequence[int], batch: int) -> Iterator[tuple[slice, slice]]:
    """Yield the steps of an epoch: which clients, and which of their examples; ``counts`` falls."""
    for begin in range(0, counts[0], batch):
        for first, after, rows in equal_batches([count - begin for count in counts], batch):
            yield slice(first, after), slice(begin, begin + rows)


def equal_batches(left: Sequence[int], batch: int) -> Iterator[tuple[int, int, int]]:
    """Yield neighbours whose next batches have the same size, as (first, after, size).

    ``left`` are the unseen examples per client in this epoch; it falls from client to client.
    """
    first = 0
    while first < len(left) and left[first] > 0:
        rows = min(left[first], batch)
        after = first + 1
        while after < len(left) and min(left[after], batch) == rows:
            after += 1
        yield first, after, rows
        first = after


MOST_EXAMPLES = 1024  # its kernel has 4 MB
LEAST_WEIGHTS = 1 << 14  # with fewer, arithmetic does not dominate
GAIN = 1.2
KERNEL_NUMBERS = 3 << 20  # per stack, in kernels and outputs: 12 MB
Orders = Sequence[Sequence[Tensor]]


def dual_is_faster(
    layers: Sequence[LinearLayer], local: LocalTraining, *, examples: int, features: int, epochs: int
) -> bool:
    """Return whether the dual form is less work: plain SGD, a wide first layer of several, few examples.

    Per example and output it needs 2·features + epochs·examples products instead of 2·epochs·features. The
    choice must not depend on cached data, because the two forms round differently.
    """
    outputs = layers[0].outputs
    if len(layers) < 2 or local.momentum or local.weight_decay or outputs % LINE:  # rows on cache lines
        return False
    if examples > MOST_EXAMPLES or features * outputs < LEAST_WEIGHTS:
        return False
    return 2 * epochs * features >= GAIN * (2 * features + epochs * examples)


class DualTraining:
    """Trains one stack after the other."""

    def __init__(self, layers: list[LinearLayer], local: LocalTraining, *, cache_bytes: int) -> None:
        self._layers, self._local = layers, local
        self.kernels = ClientCache(cache_bytes * 3 // 4)  # making them takes half the work of a round
        self.examples = ClientCache(cache_bytes // 4)  # making them takes a twentieth
        self._room = Workspace()

    def together(self, columns: int) -> int:
        """Return how many clients of this width are stacked: as many as fit a core's cache."""
        return max(1, KERNEL_NUMBERS // (columns * (columns + 2 * self._layers[0].outputs)))

    def train(self, start: Tensor, learners: Sequence[StackMember], drawn: Orders) -> None:
        """Train these from ``start`` with the drawn orders of their examples; write local minus start."""
        layer, above = self._layer(learners), self._above(start, learners)
        first = [orders[0] for orders in drawn]
        examples = [narrowed(self._narrowing(each), each, self.examples) for each in learners]
        for place, (each, x) in enumerate(zip(learners, examples, strict=True)):
            layer.load(place, self._kernel(each, x), self._before(start, each, x), each.task.y, first[place])
        self._epochs(layer, above, [each.count for each in learners], drawn)
        for place, (each, x) in enumerate(zip(learners, examples, strict=True)):
            narrowing = self._narrowing(each)
            update = _update(narrowing.layers[0], layer.moved(place, first[place]), x)
            narrowing.widen(torch.cat([*update, above.update(place)]), each.features, each.task.update)

    def _epochs(self, layer: DualLayer, above: Stack, counts: Sequence[int], drawn: Orders) -> None:
        batch, rate = self._local.batch, self._local.learning_rate
        for clients, rows in epoch_steps(counts, batch):
            layer.first_step(above, clients, rows, rate / (rows.stop - rows.start))
        for epoch in range(1, len(drawn[0])):
            layer.shuffle([orders[epoch] for orders in drawn])
            for clients, rows in epoch_steps(counts, batch):
                layer.step(above, clients, rows, rate / (rows.stop - rows.start))

    def _layer(self, learners: Sequence[StackMember]) -> DualLayer:
        columns, outputs = learners[0].columns, self._layers[0].outputs
        batch = min(self._local.batch, columns)
        return DualLayer(len(learners), columns, outputs, batch=batch, room=self._room)

    def _above(self, start: Tensor, learners: Sequence[StackMember]) -> Stack:
        """The layers above the first."""
        first, *rest = self._layers
        starts = [start[first.after :]] * len(learners)
        batch = min(self._local.batch, learners[0].count)
        return Stack(moved(rest, -first.after), self._local, starts, batch=batch)

    def _before(self, start: Tensor, learner: StackMember, x: Tensor) -> Tensor:
        """Return the first layer's outputs with the initial weights."""
        narrowing = self._narrowing(learner)
        return _outputs(narrowing.layers[0], narrowing.narrow(start, learner.features), x)

    def _narrowing(self, learner: StackMember) -> UsedFeatures:
        return UsedFeatures(self._layers, len(learner.features))

    def _kernel(self, learner: StackMember, x: Tensor) -> Tensor:
        bias = self._layers[0].bias is not None
        return self.kernels.get(learner.task.held, lambda: kernel_of(x, bias=bias))


def _outputs(layer: LinearLayer, model: Tensor, x: Tensor) -> Tensor:
    """Return the layer's output x·Wᵀ + b."""
    weight = model[layer.weight : layer.weight + layer.outputs * layer.inputs].view(layer.outputs, -1)
    if layer.bias is None:
        return torch.mm(x, weight.mT)
    return torch.addmm(model[layer.bias : layer.bias + layer.outputs], x, weight.mT)


def _update(layer: LinearLayer, errors: Tensor, x: Tensor) -> list[Tensor]:
    """Return by how much the errors moved the layer's weight and bias: −Σ dᵢ·xᵢᵀ and −Σ dᵢ."""
    weight = torch.mm(errors.mT, x).neg_().view(-1)
    return [weight] if layer.bias is None else [weight, errors.sum(0).neg_()]
