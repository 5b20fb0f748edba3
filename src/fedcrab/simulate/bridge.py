"""Between a torch module and the flat float32 vector that everything else works on.

Order: parameters, then the buffers that a state dict would save; so the trained numbers are one stretch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.simulate.models import Architecture
from fedcrab.types import Field, Layout, Vector


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """The named tensors of a module in the order of its flat vector."""
    saved = module.state_dict(keep_vars=True)
    named = dict(module.named_parameters())
    return named | {name: buffer for name, buffer in module.named_buffers() if name in saved}


def layout_of(module: nn.Module) -> Layout:
    """Which slice of the flat vector is which tensor; frozen parameters count as buffers."""
    return Layout(tuple(_field(name, tensor) for name, tensor in tensors(module).items()))


def _field(name: str, tensor: Tensor) -> Field:
    trained = tensor.requires_grad
    if tensor.is_complex() or (trained and tensor.dtype != torch.float32):
        raise ConfigError(f"tensor {name!r} is {tensor.dtype}; a model's parameters must be float32")
    return Field(name, tuple(tensor.shape), trained=trained, integer=not tensor.is_floating_point())


def write(parts: Sequence[Tensor], vector: Tensor) -> None:
    """Set tensors from a flat vector, in place: so a memory format is kept."""
    sizes = [part.numel() for part in parts]
    if vector.shape != (sum(sizes),):
        raise ConfigError(f"the model has {sum(sizes)} numbers, got a vector of shape {tuple(vector.shape)}")
    with torch.no_grad():
        for part, values in zip(parts, torch.split(vector, sizes), strict=True):
            part.copy_(values.view(part.shape))


def read(parts: Sequence[Tensor]) -> Tensor:
    """The flat vector of tensors, as a copy."""
    return torch.cat([torch.zeros(0), *(part.detach().reshape(-1).float() for part in parts)])


def initial_model(architecture: Architecture, *, seed: int) -> Vector:
    """The seeded start M_0 of an architecture; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng_for(seed, "initial").integers(2**62)))
        start: Vector = read(list(tensors(architecture.build()).values())).numpy()
        return start
