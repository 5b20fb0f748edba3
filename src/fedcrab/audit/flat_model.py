"""A torch module with a flat vector as its weights: predictions, and gradients of the loss.

The history's layout has the same names as the module's tensors, so one module serves every model of a
history. The module's own weights are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedcrab.errors import ConfigError
from fedcrab.types import Layout, Vector

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
Classify = Callable[[Tensor], Tensor]  # (examples, *shape) -> logits (examples, classes), differentiable
BATCH = 256


class FlatModel:
    """A module, in evaluation mode, for any flat model of one layout."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        """Raises ConfigError if the module's tensors differ from those of the layout."""
        self._module, self._layout = module.eval(), layout
        recorded = {field.name: field.shape for field in layout.fields}
        shapes = {name: tuple(t.shape) for name, t in module.state_dict().items()}
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad and name not in recorded:
                del shapes[name]  # frozen, and not part of the vector
        if shapes != recorded:
            differing = sorted(dict(shapes.items() ^ recorded.items()))
            raise ConfigError(
                f"the module's tensors differ from the recorded model: {', '.join(differing[:3])}"
            )
        self._frozen = {f.name for f in layout.fields if not f.trained}
        self._integer = {f.name for f in layout.fields if f.integer}
        self._trained = layout.trained()

    def at(self, model: Vector) -> Classify:
        """Return the function from examples to logits of this model, differentiable in its input."""
        tensors = self._tensors(torch.tensor(self._checked(model)))
        return lambda x: self._call(tensors, x)

    def predict(self, model: Vector, x: Images) -> Labels:
        """Return the most likely class of each example."""
        classify = self.at(model)
        with torch.no_grad():
            pieces = [classify(torch.tensor(x[i : i + BATCH])).argmax(1) for i in range(0, len(x), BATCH)]
        return torch.cat(pieces).numpy() if pieces else np.zeros(0, np.int64)

    def gradient(self, model: Vector, x: Images, y: Labels) -> NDArray[np.float64]:
        """Return ∇_M CE(f(x; M), y), the mean over the examples; 0 outside the trained coordinates."""
        return self._mean_gradient(
            model, x, y, lambda z, k: nn.functional.cross_entropy(z, k, reduction="sum")
        )

    def odds_gradient(self, model: Vector, x: Images, y: Labels) -> NDArray[np.float64]:
        """Return ∇_M of the labels' log odds, log p_y − log(1 − p_y), the mean over the examples."""
        return self._mean_gradient(model, x, y, lambda z, k: log_odds(z, k).sum())

    def _mean_gradient(
        self, model: Vector, x: Images, y: Labels, total: Callable[[Tensor, Tensor], Tensor]
    ) -> NDArray[np.float64]:
        flat, summed = torch.tensor(self._checked(model), requires_grad=True), np.zeros(len(model))
        for i in range(0, len(x), BATCH):
            logits = self._call(self._tensors(flat), torch.tensor(x[i : i + BATCH]))
            summed += torch.autograd.grad(total(logits, torch.tensor(y[i : i + BATCH])), flat)[0].numpy()
        mean = np.zeros(len(model))
        for part in self._trained:
            mean[part] = summed[part] / max(len(x), 1)
        return mean

    def _checked(self, model: Vector) -> Vector:
        if np.shape(model) != (self._layout.size,):
            raise ConfigError(f"the model has {self._layout.size} numbers, got shape {np.shape(model)}")
        return np.asarray(model, np.float32)

    def _tensors(self, flat: Tensor) -> Mapping[str, Tensor]:
        slices, tensors = self._layout.slices(), {}
        for field in self._layout.fields:
            part = flat[slices[field.name]].view(field.shape)
            part = part.detach() if field.name in self._frozen else part
            tensors[field.name] = part.round().long() if field.name in self._integer else part
        return tensors

    def _call(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        logits: Any = functional_call(self._module, dict(tensors), (x,))
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x):
            raise ConfigError(
                "the module must map (examples, *shape) to logits (examples, classes); "
                f"got {tuple(getattr(logits, 'shape', ())) or type(logits).__name__} for {tuple(x.shape)}"
            )
        return logits


def log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    """Return log p_y − log(1 − p_y) of each example: z_y − log Σ over the other classes of exp z."""
    own = logits.gather(1, labels[:, None])[:, 0]
    return own - torch.logsumexp(logits.scatter(1, labels[:, None], -torch.inf), 1)
