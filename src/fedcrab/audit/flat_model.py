"""A torch module whose weights are a flat vector: what it says of examples, and the gradient of its loss.

The history's layout names the slices of a vector, and the module's own names are the same: so one module
serves every model of a history, and is itself never written to.
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
    """A module, in evaluation mode, for any number of flat models of one layout."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        """Raises ConfigError where the module's tensors are not those of the layout."""
        self._module, self._layout = module.eval(), layout
        told = {field.name: field.shape for field in layout.fields}
        own = {name: tuple(t.shape) for name, t in module.state_dict().items()}
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad and name not in told:
                del own[name]  # frozen, and no part of the vector
        if own != told:
            differing = sorted(dict(own.items() ^ told.items()))
            raise ConfigError(
                f"the module's tensors are not those of the recorded model; {', '.join(differing[:3])} differ"
            )
        self._frozen = {f.name for f in layout.fields if not f.trained}
        self._integer = {f.name for f in layout.fields if f.integer}
        self._trained = layout.trained()

    def at(self, model: Vector) -> Classify:
        """The function that this model computes; gradients flow to its input."""
        tensors = self._tensors(torch.tensor(self._checked(model)))
        return lambda x: self._call(tensors, x)

    def predict(self, model: Vector, x: Images) -> Labels:
        """The likeliest class of each example."""
        classify = self.at(model)
        with torch.no_grad():
            pieces = [classify(torch.tensor(x[i : i + BATCH])).argmax(1) for i in range(0, len(x), BATCH)]
        return torch.cat(pieces).numpy() if pieces else np.zeros(0, np.int64)

    def gradient(self, model: Vector, x: Images, y: Labels) -> NDArray[np.float64]:
        """∇_M CE(f(x; M), y), the mean over the examples; 0 outside the trained coordinates."""
        return self._mean_gradient(
            model, x, y, lambda z, k: nn.functional.cross_entropy(z, k, reduction="sum")
        )

    def odds_gradient(self, model: Vector, x: Images, y: Labels) -> NDArray[np.float64]:
        """∇_M of the log odds of the labels, log p_y − log(1 − p_y), the mean over the examples."""
        return self._mean_gradient(model, x, y, lambda z, k: log_odds(z, k).sum())

    def _mean_gradient(
        self, model: Vector, x: Images, y: Labels, total: Callable[[Tensor, Tensor], Tensor]
    ) -> NDArray[np.float64]:
        flat, summed = torch.tensor(self._checked(model), requires_grad=True), np.zeros(len(model))
        for i in range(0, len(x), BATCH):
            logits = self._call(self._tensors(flat), torch.tensor(x[i : i + BATCH]))
            summed += torch.autograd.grad(total(logits, torch.tensor(y[i : i + BATCH])), flat)[0].numpy()
        found = np.zeros(len(model))
        for part in self._trained:
            found[part] = summed[part] / max(len(x), 1)
        return found

    def _checked(self, model: Vector) -> Vector:
        if np.shape(model) != (self._layout.size,):
            raise ConfigError(f"the model has {self._layout.size} numbers, got shape {np.shape(model)}")
        return np.asarray(model, np.float32)

    def _tensors(self, flat: Tensor) -> Mapping[str, Tensor]:
        places, found = self._layout.slices(), {}
        for field in self._layout.fields:
            part = flat[places[field.name]].view(field.shape)
            part = part.detach() if field.name in self._frozen else part
            found[field.name] = part.round().long() if field.name in self._integer else part
        return found

    def _call(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        logits: Any = functional_call(self._module, dict(tensors), (x,))
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x):
            raise ConfigError(
                "the module must map (examples, *shape) to logits (examples, classes); "
                f"got {tuple(getattr(logits, 'shape', ())) or type(logits).__name__} for {tuple(x.shape)}"
            )
        return logits


def log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    """Log p_y − log(1 − p_y) of each example: z_y − log Σ over the other classes of exp z."""
    own = logits.gather(1, labels[:, None])[:, 0]
    return own - torch.logsumexp(logits.scatter(1, labels[:, None], -torch.inf), 1)
