"""The models: softmax regression, an MLP, a small CNN, a small residual network, and any the user names.

Every model maps (examples, *shape) to logits (examples, classes).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from fedcrab.errors import ConfigError, FedcrabError

Build = Callable[[tuple[int, ...], int], nn.Module]


@dataclass(frozen=True, slots=True)
class Architecture:
    """Which model, for which examples; small enough to be told to another process."""

    name: str  # one of ARCHITECTURES, or "module:function" with function(shape, classes) -> torch.nn.Module
    shape: tuple[int, ...]
    classes: int

    def build(self) -> nn.Module:
        """The module, with whatever weights it starts with."""
        function = ARCHITECTURES[self.name] if self.name in ARCHITECTURES else _named(self.name)
        try:
            module = function(self.shape, self.classes)
        except FedcrabError:
            raise
        except Exception as problem:  # a user's function may raise anything
            raise ConfigError(
                f"model {self.name!r} cannot be made for shape {self.shape} and {self.classes} classes: "
                f"{type(problem).__name__}: {problem}"
            ) from problem
        if not isinstance(module, nn.Module):
            raise ConfigError(f"model {self.name!r} gave a {type(module).__name__}, not a torch.nn.Module")
        return module


def softmax_regression(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One linear layer: a convex problem."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 128, so 784-128-10 for MNIST."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 128), nn.ReLU(), nn.Linear(128, classes))


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 5 x 5 convolutions of 16 and 32 channels, each with ReLU and 2 x 2 pooling, and a linear layer.

    Images under 16 pixels, such as the digits, are padded, or the second convolution would not fit.
    """
    channels, height, width = _image(shape, "cnn")
    padding = 2 if min(height, width) < 16 else 0
    body = nn.Sequential(
        nn.Conv2d(channels, 16, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    with torch.no_grad():
        features = body(torch.zeros(1, channels, height, width)).shape[1]
    return body.append(nn.Linear(features, classes))


class Residual(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm beside a shortcut (He et al., CVPR 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        narrow = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut: nn.Module = nn.Identity() if inputs == outputs and stride == 1 else narrow

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of body and shortcut together."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A residual network of three stages (16, 32, 64 channels, one block each) with BatchNorm."""
    channels, _, _ = _image(shape, "resnet")
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


ARCHITECTURES: dict[str, Build] = {
    "softmax": softmax_regression,
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
}


def _image(shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise ConfigError(
            f"model {name!r} needs images (channels, height, width) of 8 x 8 or more, got shape {shape}; "
            "take softmax or mlp"
        )
    return shape[0], shape[1], shape[2]


def _named(name: str) -> Build:
    module, _, function = name.partition(":")
    if not function:
        raise ConfigError(
            f"no model {name!r}; there are {', '.join(ARCHITECTURES)}, or name your own as module:function"
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as problem:
        raise ConfigError(f"model {name!r} cannot be imported: {problem}") from problem
    if not callable(found):
        raise ConfigError(f"model {name!r} is not a function of (shape, classes)")
    build: Build = found
    return build
