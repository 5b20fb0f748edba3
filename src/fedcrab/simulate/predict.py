"""Predictions of flat models, and how much two models differ in them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.simulate.data import Images, Labels
from fedcrab.simulate.engines import one_thread
from fedcrab.simulate.engines.cnn import channels_last, rewritten
from fedcrab.simulate.models import Architecture, read, tensors, write
from fedcrab.types import Vector

BATCH = 256
FEW = 1024  # examples of a probe: for so few, threads cost more than they save
SMALL = 32  # examples per step of descent
LogProbabilities = NDArray[np.float32]


class Predictor:
    """The module of an architecture in evaluation mode, for any number of flat models."""

    def __init__(self, architecture: Architecture, *, device: str = "cpu") -> None:
        module = architecture.build()
        fast = rewritten(module) if device == "cpu" else None
        self._module: nn.Module = (fast or module).eval().to(device)
        self._device = torch.device(device)
        self._arranged = channels_last if fast else None
        self._tensors: Sequence[Tensor] = list(tensors(self._module).values())
        self._shape = architecture.shape

    def log_probabilities(self, model: Vector, x: Images) -> LogProbabilities:
        """Return the logarithms of the softmax output: (examples, classes)."""
        if np.shape(x)[1:] != self._shape:
            raise ConfigError(f"the model takes examples of shape {self._shape}, got {np.shape(x)[1:]}")
        with torch.inference_mode(), one_thread() if len(x) <= FEW else nullcontext():
            write(self._tensors, torch.tensor(model))
            pieces = [self._piece(x[i : i + BATCH]) for i in range(0, max(len(x), 1), BATCH)]
            return torch.cat(pieces).numpy()

    def _piece(self, x: Images) -> Tensor:
        return torch.log_softmax(self._scores(x), -1).cpu()

    def _scores(self, x: Images) -> Tensor:
        given = torch.tensor(x).to(self._device)
        scores: Tensor = self._module(self._arranged(given) if self._arranged else given)
        return scores

    def predict(self, model: Vector, x: Images) -> NDArray[np.float32]:
        """Return the softmax output: (examples, classes)."""
        return np.exp(self.log_probabilities(model, x))

    def descended(
        self,
        model: Vector,
        x: Images,
        goal: LogProbabilities,
        order: NDArray[np.int64],
        temperature: float,
        rate: float,
    ) -> Vector:
        """Return the model after descending τ²·KL(goal ‖ own) at temperature τ, batch by batch in this order.

        ``goal`` are log-probabilities, which equal the scores up to a constant per example. For such small
        batches a second thread saves nothing, and on a busy machine the first one waits for it.
        """
        with torch.enable_grad(), one_thread():
            write(self._tensors, torch.tensor(model))
            for rows in (order[i : i + SMALL] for i in range(0, len(order), SMALL)):
                scores = self._scores(x[rows]) / temperature
                wanted = torch.log_softmax(torch.tensor(goal[rows]).to(self._device) / temperature, -1)
                loss = nn.functional.kl_div(
                    torch.log_softmax(scores, -1), wanted, reduction="batchmean", log_target=True
                )
                parameters = [p for p in self._module.parameters() if p.requires_grad]
                slopes = torch.autograd.grad(loss * temperature**2, parameters)
                with torch.no_grad():
                    for parameter, slope in zip(parameters, slopes, strict=True):
                        parameter.sub_(slope, alpha=rate)
        return np.array(read(self._tensors).cpu().numpy())

    def accuracy(self, model: Vector, x: Images, y: Labels) -> float:
        """Return the share of examples that are predicted correctly."""
        return float(np.mean(self.log_probabilities(model, x).argmax(1) == y))


def cross_entropy(log_p: LogProbabilities, y: Labels) -> float:
    """Return the mean of −log p of the label."""
    return float(-np.mean(log_p[np.arange(len(y)), y], dtype=np.float64))


def kl_divergence(log_p: LogProbabilities, log_q: LogProbabilities) -> float:
    """Return the mean over examples of KL(p ‖ q) = Σ_k p_k·log(p_k / q_k)."""
    p = log_p.astype(np.float64)
    return float(np.mean(np.sum(np.exp(p) * (p - log_q), axis=1)))


class Probe:
    """The server's own examples: the loss of a model, and the divergence between two.

    The last two models used are cached, because a round needs its own and the previous one.
    """

    def __init__(self, predictor: Predictor, x: Images, y: Labels) -> None:
        self._predictor, self._x, self._y = predictor, x, y
        self._recent: list[tuple[Vector, LogProbabilities]] = []

    @property
    def examples(self) -> tuple[Images, Labels]:
        """Return the examples and their labels."""
        return self._x, self._y

    def loss(self, model: Vector) -> float:
        """Return F(model): the mean cross-entropy on the probe set."""
        return cross_entropy(self._log_probabilities(model), self._y)

    def accuracy(self, model: Vector) -> float:
        """Return the share of the probe set that is predicted correctly."""
        return float(np.mean(self._log_probabilities(model).argmax(1) == self._y))

    def divergence(self, before: Vector, after: Vector) -> float:
        """Return D: the mean over the probe set of KL(p_before ‖ p_after)."""
        return kl_divergence(self._log_probabilities(before), self._log_probabilities(after))

    def distil(
        self, student: Vector, teacher: Vector, *, temperature: float, rate: float, epoch: int
    ) -> Vector:
        """Return the student after one epoch of descent towards the teacher's outputs on the probe inputs.

        The loss is τ²·KL(softmax(teacher/τ) ‖ softmax(student/τ)). The batches depend on the epoch only.
        """
        order = rng_for(epoch, "distil").permutation(len(self._x))
        goal = self._predictor.log_probabilities(teacher, self._x)
        return self._predictor.descended(student, self._x, goal, order, temperature, rate)

    def _log_probabilities(self, model: Vector) -> LogProbabilities:
        found = next((pair for pair in self._recent if np.array_equal(pair[0], model)), None)
        found = found or (np.array(model), self._predictor.log_probabilities(model, self._x))
        others = [pair for pair in self._recent if pair is not found]
        self._recent = [*others[-1:], found]  # the last used comes last
        return found[1]
