"""Small CNNs in compiled code, one client after the other.

``fedcrab/native/cnn.c`` computes the same steps as the plain loop: convolutions of stride 1, each with or
without ReLU and 2 × 2 pooling, then linear layers with ReLU between. It uses only those gradients that are not
0, so it stops when a number is not finite; the client is then trained again by the engine for other CNNs.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from fedcrab.simulate.engines.cnn import follows, input_shapes
from fedcrab.simulate.engines.cnn_layers import Shape, padding_of
from fedcrab.simulate.engines.plain import Engine, LocalTraining, Task, orders
from fedcrab.simulate.models import read, write

PATTERN = re.compile("(cp?r?)+fl(rl)*")
MOST_LAYERS = 16  # as in cnn.c
CHUNKS = (32, 8, 1)  # examples whose activations are in memory together
MOST_FLOATS = 1 << 23  # of workspace
ALIGNED = 16  # numbers; every weight begins a line of the cache


class Layer(ctypes.Structure):
    """A convolution, or a linear layer as one on a single pixel, as in cnn.c."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in "height width channels rows columns outputs pooled relu above beside".split()
    ] + [(name, ctypes.c_int64) for name in ("weight", "bias", "has_bias")]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter is in the array of all, and how torch orders it."""

    begin: int
    sizes: tuple[int, ...]
    used: int  # of the last dimension; the rest are zeros
    order: tuple[int, ...]

    def view(self, parameters: Tensor) -> Tensor:
        """Return the parameter in torch's order."""
        part = parameters[self.begin : self.begin + prod(self.sizes)]
        return part.view(self.sizes)[..., : self.used].permute(self.order)


class CompiledCnn:
    """A CNN as cnn.c needs it: its sizes, one array of parameters, and a workspace."""

    def __init__(self, library: ctypes.CDLL, network: nn.Sequential, shapes: Sequence[Shape]) -> None:
        self._library, self._lanes, self._size = library, int(library.cnn_lanes()), 0
        self._places: list[Place] = []
        layers = list(self._layers(network, shapes))
        convolutions = sum(isinstance(step, nn.Conv2d) for step in network)
        sizes = [(Layer * len(layers))(*layers), len(layers), convolutions, self._size]
        self.shape = (shapes[0][2], *shapes[0][:2])
        self.weights = torch.zeros(self._size)
        self.as_torch = [place.view(self.weights) for place in self._places]
        library.cnn_workspace.restype = ctypes.c_int64
        floats = {n: library.cnn_workspace(sizes[0], *map(ctypes.c_int64, (*sizes[1:], n))) for n in CHUNKS}
        self.fits = floats[CHUNKS[-1]] <= MOST_FLOATS
        chunk = next((n for n in CHUNKS if floats[n] <= MOST_FLOATS), CHUNKS[-1])
        self._sizes = (sizes[0], *map(ctypes.c_int64, (*sizes[1:], chunk)))
        self._workspace = torch.zeros(floats[chunk] if self.fits else 0)

    def epoch(self, task: Task, order: Tensor, local: LocalTraining, velocities: Tensor | None) -> bool:
        """Train one epoch in place; return False if a number is not finite or a label is not a class."""
        arrays = (self.weights, velocities, self._workspace, task.x, task.y, order)
        rates = (local.learning_rate, local.momentum, local.weight_decay)
        failed = self._library.cnn_train(
            *self._sizes,
            *(ctypes.c_void_p(None if array is None else array.data_ptr()) for array in arrays),
            ctypes.c_int64(len(order)),
            ctypes.c_int64(min(local.batch, len(order))),
            *map(ctypes.c_float, rates),
        )
        return failed == 0

    def _layers(self, network: nn.Sequential, shapes: Sequence[Shape]) -> Iterator[Layer]:
        """Yield the sizes of each layer with weights, and reserve the places of its parameters."""
        for place, step in enumerate(network):
            after = network[place + 1 : place + 3]
            if isinstance(step, nn.Conv2d):
                pooled = isinstance(after[0], nn.MaxPool2d)
                relu = isinstance(after[pooled], nn.ReLU)
                yield self._convolution(step, shapes[place], first=place == 0, pooled=pooled, relu=relu)
            elif isinstance(step, nn.Linear):
                yield self._linear(step, shapes[place - 1], relu=len(after) > 0)

    def _convolution(
        self, step: nn.Conv2d, given: Shape, *, first: bool, pooled: bool, relu: bool
    ) -> Layer:
        """In the first layer, the outputs are innermost in memory, in others the inputs."""
        (height, width, inputs), (above, beside) = given, padding_of(step)
        outputs, _, rows, columns = step.weight.shape
        channels = inputs if first else self._whole(inputs)
        if first:
            weight = self._reserve((rows, columns, inputs, self._whole(outputs)), outputs, (3, 2, 0, 1))
        else:
            weight = self._reserve((outputs, rows, columns, channels), inputs, (0, 3, 1, 2))
        sizes = (height + 2 * above, width + 2 * beside, channels, rows, columns, outputs)
        return Layer(*sizes, pooled, relu, above, beside, weight, *self._bias(step.bias, outputs))

    def _linear(self, step: nn.Linear, given: Shape, *, relu: bool) -> Layer:
        """A first linear layer takes images in the order of cnn.c."""
        height, width, channels = given
        sizes = (step.out_features, height, width, self._whole(channels))
        weight = self._reserve(sizes, channels, (0, 3, 1, 2))
        described = (1, 1, prod(sizes[1:]), 1, 1, step.out_features)
        return Layer(*described, False, relu, 0, 0, weight, *self._bias(step.bias, step.out_features))

    def _bias(self, bias: Tensor | None, outputs: int) -> tuple[int, bool]:
        """A missing bias is one that stays 0."""
        begin = self._reserve((self._whole(outputs),), outputs, (0,))
        if bias is None:
            self._places.pop()
        return begin, bias is not None

    def _whole(self, n: int) -> int:
        """Return n in whole vectors."""
        return -(-n // self._lanes) * self._lanes

    def _reserve(self, sizes: tuple[int, ...], used: int, order: tuple[int, ...]) -> int:
        begin = self._size
        self._places.append(Place(begin, sizes, used, order))
        self._size += -(-prod(sizes) // ALIGNED) * ALIGNED
        return begin


def compiled(library: ctypes.CDLL, network: nn.Sequential, shape: Sequence[int]) -> CompiledCnn | None:
    """Return a rewritten CNN in compiled code for examples of a shape, or None if that is impossible."""
    weights = [step for step in network if isinstance(step, nn.Conv2d | nn.Linear)]
    if not follows(network, PATTERN) or len(weights) > MOST_LAYERS:
        return None
    shapes = input_shapes(network, shape)
    if shapes is None or min(parameter.numel() for parameter in network.parameters()) == 0:
        return None
    made = CompiledCnn(library, network, shapes)
    return made if made.fits else None


class CompiledCnnEngine:
    """Trains a CNN in compiled code; clients that it cannot train are left to another engine.

    The choice depends on the client only, and so do its bits.
    """

    together = 1

    def __init__(self, network: CompiledCnn, other: Engine, local: LocalTraining, *, seed: int) -> None:
        self._network, self._other, self._local, self._seed = network, other, local, seed

    def train(self, start: Tensor, tasks: Sequence[Task], *, round: int, epochs: int) -> None:
        """Train every task from ``start`` and write local minus start into its row."""
        for task in tasks:
            if self._takes(task) and self._trained(start, task, round, epochs):
                torch.sub(read(self._network.as_torch), start, out=task.update)
            else:
                self._other.train(start, [task], round=round, epochs=epochs)

    def _takes(self, task: Task) -> bool:
        """Return whether the examples are laid out as cnn.c reads them."""
        known = (task.x.dtype, task.y.dtype) == (torch.float32, torch.int64)
        expected = (len(task.y), *self._network.shape)
        in_order = task.x.is_contiguous() and task.y.is_contiguous() and task.y.dim() == 1
        return known and in_order and len(task.y) > 0 and tuple(task.x.shape) == expected

    def _trained(self, start: Tensor, task: Task, round: int, epochs: int) -> bool:
        network = self._network
        network.weights.zero_()  # what fills up the vectors may not be 0 after a failure
        write(network.as_torch, start)
        velocities = torch.zeros_like(network.weights) if self._local.momentum else None
        drawn = orders(self._seed, round, task.client, count=len(task.y), epochs=epochs)
        return all(network.epoch(task, order, self._local, velocities) for order in drawn)
