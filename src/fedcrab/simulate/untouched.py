"""Whether a sequence of torch's own layers is only that, so that a fast engine may compute it in their place.

A layer keeps its type when hooks are put on it, and torch's older weight and spectral normalisation are such
hooks; and one layer may stand at two places, with one set of weights.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TypeGuard

from torch import nn

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def untouched(module: nn.Module, kinds: Container[type[nn.Module]]) -> TypeGuard[nn.Sequential]:
    """A Sequential of layers of these kinds as torch makes them, every weight of its own and trained."""
    if type(module) is not nn.Sequential or any(type(step) not in kinds for step in module):
        return False
    return all(map(_as_made, module.modules())) and _weights_of_its_own(module)


def _as_made(module: nn.Module) -> bool:
    """Without hooks, and no function put in place of its own."""
    return "forward" not in vars(module) and not any(getattr(module, hooks) for hooks in HOOKS)


def _weights_of_its_own(module: nn.Sequential) -> bool:
    """Weights and biases alone, each at one place, none frozen or watched."""
    owned = [each for step in module for each in step.named_parameters()]
    if any(name not in ("weight", "bias") for name, _ in owned) or any(True for _ in module.buffers()):
        return False
    if len({id(parameter) for _, parameter in owned}) < len(owned):
        return False
    return all(parameter.requires_grad and not parameter._backward_hooks for _, parameter in owned)
