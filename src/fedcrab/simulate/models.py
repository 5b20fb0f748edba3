"""The models: softmax regression, an MLP, a small CNN, a small residual network, and the user's own.

Every model maps (examples, *shape) to logits (examples, classes).

Also converts between a torch module and the flat float32 vector: trained parameters first, then the buffers
that a state dict would save, so that the trained numbers are contiguous. Frozen parameters are not part of
it: every process gets them from the function that makes the module, and they need not be sent or recorded.

Also decides whether a module is a plain sequence of torch's own layers, which a fast engine may replace. A
layer keeps its type when hooks are added to it, as torch's older weight and spectral normalisation do, and
one layer may be used twice with shared weights. Such modules are not plain.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeGuard

import torch
from torch import Tensor, nn

from fedcrab.errors import ConfigError, FedcrabError
from fedcrab.seeds import rng_for
from fedcrab.types import Field, Layout, Vector

Build = Callable[[tuple[int, ...], int], nn.Module]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model and the shape of its examples; small enough to send to another process."""

    name: str  # one of ARCHITECTURES, or "module:function" with function(shape, classes) -> torch.nn.Module
    shape: tuple[int, ...]
    classes: int

    def build(self) -> nn.Module:
        """Return the module, with the same weights in every process; torch's generator is unchanged."""
        return self.seeded(0)

    def seeded(self, seed: int) -> nn.Module:
        """Return the module as its function makes it when torch's generator starts with this seed."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self._made()

    def _made(self) -> nn.Module:
        function = ARCHITECTURES[self.name] if self.name in ARCHITECTURES else _named(self.name)
        try:
            module = function(self.shape, self.classes)
        except FedcrabError:
            raise
        except Exception as problem:  # a user's function may raise anything
            raise ConfigError(
                f"model {self.name!r} cannot be built for shape {self.shape} and {self.classes} classes: "
                f"{type(problem).__name__}: {problem}"
            ) from problem
        if not isinstance(module, nn.Module):
            raise ConfigError(f"model {self.name!r} returned {type(module).__name__}, not a torch.nn.Module")
        return module


def softmax_regression(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One linear layer: a convex problem."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 128, so 784-128-10 for MNIST."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 128), nn.ReLU(), nn.Linear(128, classes))


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 5 x 5 convolutions of 16 and 32 channels, each with ReLU and 2 x 2 pooling, and a linear layer.

    Images under 16 pixels, such as the digits, are padded; otherwise the second convolution would not fit.
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
    """Two 3 x 3 convolutions with BatchNorm and a shortcut (He et al., CVPR 2016)."""

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
        """Return ReLU of the sum of body and shortcut."""
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
            "use softmax or mlp"
        )
    return shape[0], shape[1], shape[2]


def _named(name: str) -> Build:
    module, _, function = name.partition(":")
    if not function:
        raise ConfigError(
            f"no model {name!r}; there are {', '.join(ARCHITECTURES)}, or give your own as module:function"
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as problem:
        raise ConfigError(f"model {name!r} cannot be imported: {problem}") from problem
    if not callable(found):
        raise ConfigError(f"model {name!r} is not a function of (shape, classes)")
    build: Build = found
    return build


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the named tensors of a module in the order of its flat vector."""
    saved = module.state_dict(keep_vars=True)
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    return trained | {name: buffer for name, buffer in module.named_buffers() if name in saved}


def frozen_hash(module: nn.Module) -> str:
    """Return the sha256 of a module's frozen parameters, so that processes can check that they are equal."""
    found = hashlib.sha256()
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            numbers = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            found.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
            found.update(numbers.numpy().tobytes())
    return found.hexdigest()


def layout_of(module: nn.Module) -> Layout:
    """Return which slice of the flat vector is which tensor."""
    return Layout(tuple(_field(name, tensor) for name, tensor in tensors(module).items()))


def _field(name: str, tensor: Tensor) -> Field:
    trained = tensor.requires_grad
    if tensor.is_complex() or (trained and tensor.dtype != torch.float32):
        raise ConfigError(f"tensor {name!r} has type {tensor.dtype}; a model's parameters must be float32")
    return Field(name, tuple(tensor.shape), trained=trained, integer=not tensor.is_floating_point())


def write(parts: Sequence[Tensor], vector: Tensor) -> None:
    """Set tensors from a flat vector in place, which keeps the memory format."""
    sizes = [part.numel() for part in parts]
    if vector.shape != (sum(sizes),):
        raise ConfigError(f"the model has {sum(sizes)} numbers, got a vector of shape {tuple(vector.shape)}")
    with torch.no_grad():
        for part, values in zip(parts, torch.split(vector, sizes), strict=True):
            part.copy_(values.view(part.shape))


def read(parts: Sequence[Tensor]) -> Tensor:
    """Return the flat vector of tensors, as a copy."""
    flat = [part.detach().reshape(-1).float() for part in parts]
    return torch.cat(flat) if flat else torch.zeros(0)


def initial_model(architecture: Architecture, *, seed: int) -> Vector:
    """Return the seeded initial model M_0; torch's global generator is unchanged."""
    module = architecture.seeded(int(rng_for(seed, "initial").integers(2**62)))
    start: Vector = read(list(tensors(module).values())).numpy()
    return start


HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def only_plain_layers(module: nn.Module, kinds: Container[type[nn.Module]]) -> TypeGuard[nn.Sequential]:
    """Return whether this is a Sequential of unmodified layers of these types, with own, trained weights."""
    if type(module) is not nn.Sequential or any(type(step) not in kinds for step in module):
        return False
    return all(map(as_made, module.modules())) and _weights_of_its_own(module)


def as_made(module: nn.Module) -> bool:
    """Return whether a module has no hooks and its own ``forward``."""
    return "forward" not in vars(module) and not any(getattr(module, hooks) for hooks in HOOKS)


def _weights_of_its_own(module: nn.Sequential) -> bool:
    """Return whether there are only weights and biases, each used once, none frozen or hooked."""
    owned = [each for step in module for each in step.named_parameters()]
    if any(name not in ("weight", "bias") for name, _ in owned) or any(True for _ in module.buffers()):
        return False
    if len({id(parameter) for _, parameter in owned}) < len(owned):
        return False
    return all(parameter.requires_grad and not parameter._backward_hooks for _, parameter in owned)
