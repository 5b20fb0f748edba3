"""Small CNNs in compiled code, one client after the other.

``fedcrab/native/cnn.c`` computes the same steps as the plain loop: convolutions of stride 1, each with or
without ReLU and 2 × 2 pooling, then linear layers with ReLU between. It uses only those gradients that are
not 0, so it stops when a number is not finite; the client is then trained again by the engine for other CNNs.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
LARGE_KERNEL, MANY_CHANNELS = 25, 128  # pixels; pairs of channels per number in a vector
ALIGNED = 16  # numbers; every weight begins a line of the cache


NUMBERS = (
    *("height", "width", "channels", "rows", "columns", "outputs", "pooled", "relu", "above", "beside"),
    *("weight", "bias", "has_bias"),
)


class Layer(ctypes.Structure):
    """A convolution, or a linear layer as one on a single pixel, as in cnn.c."""

    _fields_ = tuple((name, ctypes.c_int64) for name in NUMBERS)


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


def _integers(*numbers: int) -> tuple[ctypes.c_int64, ...]:
    return tuple(ctypes.c_int64(number) for number in numbers)


class CompiledCnn:
    """A CNN as cnn.c needs it: its sizes, one array of parameters, and a workspace."""

    def __init__(self, library: ctypes.CDLL, network: nn.Sequential, shapes: Sequence[Shape]) -> None:
        self._library, self._lanes, self._size = library, int(library.cnn_lanes()), 0
        self._places: list[Place] = []
        layers = list(self._layers(network, shapes))
        convolutions = sum(isinstance(step, nn.Conv2d) for step in network)
        self._sizes = ((Layer * len(layers))(*layers), *_integers(len(layers), convolutions, self._size))
        self.shape = (shapes[0][2], *shapes[0][:2])
        self.weights = torch.zeros(self._size)
        self.as_torch = [place.view(self.weights) for place in self._places]
        library.cnn_workspace.restype = ctypes.c_int64
        floats = {chunk: library.cnn_workspace(*self._sizes, *_integers(chunk)) for chunk in CHUNKS}
        self._chunk = next((chunk for chunk in CHUNKS if floats[chunk] <= MOST_FLOATS), 0)
        self._workspace = torch.zeros(floats[self._chunk] if self._chunk else 0)

    @property
    def fits(self) -> bool:
        """Whether the workspace for one example is small enough."""
        return self._chunk > 0

    def epoch(self, task: Task, order: Tensor, local: LocalTraining, velocities: Tensor | None) -> bool:
        """Train one epoch in place; return False if a number is not finite or a label is not a class."""
        arrays = (self.weights, velocities, self._workspace, task.x, task.y, order)
        pointers = (ctypes.c_void_p(None if array is None else array.data_ptr()) for array in arrays)
        counts = _integers(len(order), min(local.batch, len(order)))
        rates = map(ctypes.c_float, (local.learning_rate, local.momentum, local.weight_decay))
        failed: int = self._library.cnn_train(
            *self._sizes, *_integers(self._chunk), *pointers, *counts, *rates
        )
        return failed == 0

    def _layers(self, network: nn.Sequential, shapes: Sequence[Shape]) -> Iterator[Layer]:
        """Yield the sizes of each layer with weights, and reserve the places of its parameters."""
        steps = list(network)
        for place, step in enumerate(steps):
            after = steps[place + 1 : place + 3]
            if isinstance(step, nn.Conv2d):
                pooled = isinstance(after[0], nn.MaxPool2d)
                relu = isinstance(after[pooled], nn.ReLU)
                yield self._convolution(step, shapes[place], first=place == 0, pooled=pooled, relu=relu)
            elif isinstance(step, nn.Linear):
                yield self._linear(step, shapes[place - 1], relu=bool(after))

    def _convolution(self, step: nn.Conv2d, given: Shape, *, first: bool, pooled: bool, relu: bool) -> Layer:
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


def compiled_is_faster(library: ctypes.CDLL, network: nn.Sequential) -> bool:
    """Return whether compiled code trains a CNN that it supports faster than torch does, as measured.

    Its backward pass gains from gradients that are 0, so each later convolution must be followed by pooling;
    with vectors of 16 numbers, ReLU is enough. Spectra win when a large kernel connects many channels.
    """
    lanes = int(library.cnn_lanes())
    pairs = [(step, after) for step, after in pairwise(network) if isinstance(step, nn.Conv2d)]
    for step, after in pairs[1:]:
        if not isinstance(after, nn.MaxPool2d) and not (lanes >= 16 and isinstance(after, nn.ReLU)):
            return False
        outputs, inputs, rows, columns = step.weight.shape
        if rows * columns >= LARGE_KERNEL and inputs * outputs > MANY_CHANNELS * lanes:
            return False
    return True


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
