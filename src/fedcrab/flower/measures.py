"""Loss and divergence of a round: from data that the server holds, else from what clients report.

With an ``evaluate_fn``, the loss it gives and, where it also gives ``probabilities``, KL(p_t ‖ p_{t+1});
without one, the weighted median of the reported losses and ‖M_{t+1} - M_t‖.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.flower.arrays import Model
from fedcrab.types import Vector
from fedcrab.vectors import norm

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
LOSS = "loss"
PROBABILITIES = "probabilities"  # the softmax output on the server's examples, flattened
REPORTED = ("train_loss", "train-loss", "loss")  # what Flower's templates call a client's loss
UNKNOWN = float("nan")


class Measures:
    """Each model is evaluated once: the one after a round is the one before the next."""

    def __init__(self, evaluate: EvaluateFn | None, model: Model) -> None:
        self._evaluate, self._model = evaluate, model
        self._last: tuple[Vector, MetricRecord] | None = None

    def loss(self, round: int, vector: Vector) -> float:
        """F of a model by the server's own data; not a number without them."""
        return _number(self._of(round, vector), LOSS) if self._evaluate else UNKNOWN

    def after(
        self, round: int, before: Vector, after: Vector, reported: Sequence[tuple[float, float]]
    ) -> tuple[float, float]:
        """Loss and divergence of a round; ``reported`` has the loss and the examples of each client."""
        if self._evaluate is None:
            return weighted_median(reported), self._distance(before, after)
        old = self._of(round, before).get(PROBABILITIES)
        new = self._of(round + 1, after)
        both = old is not None and PROBABILITIES in new
        return _number(new, LOSS), (
            divergence(np.array(old), np.array(new[PROBABILITIES])) if both else self._distance(before, after)
        )

    def _of(self, round: int, vector: Vector) -> MetricRecord:
        if self._last is None or not np.array_equal(self._last[0], vector):
            found = self._evaluate(round, self._model.arrays(vector)) if self._evaluate else None
            self._last = vector, MetricRecord() if found is None else found
        return self._last[1]

    def _distance(self, before: Vector, after: Vector) -> float:
        return norm(after - before, self._model.layout.trained())


def divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    """Mean over the examples of Σ_k p_k·log(p_k / q_k); each example's p sums to one, so Σp counts them."""
    if p.shape != q.shape or not p.sum() > 0:
        raise ConfigError(f"the evaluation gave {q.size} probabilities after a round and {p.size} before it")
    tiny = np.finfo(np.float32).tiny
    terms = p * (np.log(np.maximum(p, tiny)) - np.log(np.maximum(q, tiny)))
    return float(terms.sum() / p.sum())


def weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """The least value at which half of the weight is reached; not a number of nothing."""
    if not values:
        return UNKNOWN
    ordered = sorted(values)
    weights = np.cumsum([weight for _, weight in ordered])
    return ordered[int(np.searchsorted(weights, weights[-1] / 2))][0]


def _number(record: Mapping[str, object], key: str) -> float:
    value = record.get(key)
    return float(value) if isinstance(value, int | float) else UNKNOWN
