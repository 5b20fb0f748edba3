"""Loss, accuracy and predictions of recorded models of a torch module.

Use it as the server's probe in your own training loop, or as the test examples of a recovery.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.state_dicts import flatten, state_layout

if TYPE_CHECKING:
    from torch import nn

BATCH = 256
LogProbabilities = NDArray[np.float32]


class ModuleProbe:
    """A classifier's module with labelled examples. The module is copied and never modified."""

    def __init__(self, module: nn.Module, x: Any, y: Any) -> None:
        """``x`` are examples in the form that the module takes, ``y`` their classes: tensors or arrays."""
        from fedcrab.audit.flat_model import FlatModel

        self.layout = state_layout(module)
        self._model = FlatModel(copy.deepcopy(module), self.layout)
        self.x, self.y = np.asarray(_plain(x)), np.asarray(_plain(y), np.int64)
        if self.y.ndim != 1 or not len(self.y) or len(self.x) != len(self.y):
            raise ConfigError(
                f"a probe needs one class for each example, got {len(self.x)} examples and "
                f"classes of shape {self.y.shape}"
            )
        self._recent: list[tuple[NDArray[np.float32], LogProbabilities]] = []

    def loss(self, model: Any) -> float:
        """Return the mean cross-entropy of a model (a module, a state dict or a flat vector)."""
        log_p = self._log_probabilities(model)
        return float(-np.mean(log_p[np.arange(len(self.y)), self.y], dtype=np.float64))

    def accuracy(self, model: Any) -> float:
        """Return the share of the examples that a model predicts correctly."""
        return float(np.mean(self._log_probabilities(model).argmax(1) == self.y))

    def divergence(self, before: Any, after: Any) -> float:
        """Return the mean of KL(p_before ‖ p_after) over the examples."""
        p = self._log_probabilities(before).astype(np.float64)
        return float(np.mean(np.sum(np.exp(p) * (p - self._log_probabilities(after)), axis=1)))

    def predict(self, model: Any, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return the class probabilities of other examples, one row per example."""
        return np.exp(self._of(flatten(model, self.layout), x))

    def _log_probabilities(self, model: Any) -> LogProbabilities:
        vector = flatten(model, self.layout)
        for seen, log_p in self._recent:
            if np.array_equal(seen, vector):
                return log_p
        log_p = self._of(vector, self.x)
        self._recent = [*self._recent[-1:], (np.array(vector), log_p)]
        return log_p

    def _of(self, vector: NDArray[np.float32], x: NDArray[Any]) -> LogProbabilities:
        import torch

        classify = self._model.at(vector)
        with torch.no_grad():
            pieces = [
                torch.log_softmax(classify(torch.as_tensor(x[i : i + BATCH])), 1)
                for i in range(0, len(x), BATCH)
            ]
        return torch.cat(pieces).numpy()


def probe(module: nn.Module, x: Any, y: Any) -> ModuleProbe:
    """Return a probe: loss, accuracy, divergence and predictions of this module's models on the examples."""
    from fedcrab.extras import need_extra

    need_extra("simulate", "a probe")
    return ModuleProbe(module, x, y)


def _plain(values: Any) -> Any:
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values
