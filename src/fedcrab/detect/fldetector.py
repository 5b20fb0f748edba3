"""FLDetector: a client is malicious if its updates differ from what its earlier updates predict.

    û_i = u_i^s + H̃·(M_t - M_s)
    score_i = mean over the last N rounds of ‖u_i^t - û_i‖ / Σ_j ‖u_j^t - û_j‖

s is the last round of client i before t. H̃ is the L-BFGS estimate from the last N pairs of model differences
M_t - M_{t-1} and differences between the steps taken there. If the gap statistic finds more than one group
of scores, there is an attack. 2-means then splits the clients: those with the larger scores are malicious.

Zhang, Cao, Jia, Gong, "FLDetector: Defending Federated Learning Against Model Poisoning Attacks via Detecting
Malicious Clients", KDD 2022. Differences from the paper: a client that missed rounds is predicted from its
last update (the paper has s = t - 1, because all clients take part in all rounds); if the pairs determine no
H̃, the last update is the prediction; scores are multiplied by the number of clients, so that the average is
1; for a recorded history the decision is made once, at its end (the paper decides after every round, which
:class:`FLDetector` can do too).

The gap statistic is from Tibshirani, Walther, Hastie, "Estimating the number of clusters in a data set via
the gap statistic", 2001:

    Gap(k) = mean log W_k of uniform numbers - log W_k,   s_k = deviation of the former · √(1 + 1/B)

W_k is the sum of squares within k groups. The number of groups is the smallest k with
Gap(k) ≥ Gap(k+1) - s_{k+1}. Difference from the paper: k-means on a line is solved exactly, so that there is
no random start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedcrab.detect.detection import Detection, Suspicion
from fedcrab.errors import ConfigError, HistoryError
from fedcrab.history import Everything, History
from fedcrab.lbfgs import hessian_product
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId, Fleet, Layout, Updates, Vector
from fedcrab.vectors import Matrix64

MIN_COUNT = 3  # scored rounds and scored clients
MAX_CONFIDENCE = 0.999
REASON = "its updates differ from what its earlier updates predict"
SAMPLES, MAX_GROUPS = 20, 10  # of the gap statistic: uniform samples (B), and groups (k)
LEAST_SQUARES = 1e-12  # as many groups as distinct numbers leave no squares, and no logarithm


class FLDetector:
    """FLDetector during a training: call :meth:`see` once per round, then :meth:`detection`."""

    def __init__(self, *, window: int = 10, layout: Layout | None = None) -> None:
        """``window`` is N, in rounds. With a ``layout``, only trained numbers are compared."""
        if not isinstance(window, int) or isinstance(window, bool) or window < 1:
            raise ConfigError(f"window must be a whole number of 1 or more, got {window!r}")
        self._trained = layout.trained() if layout else None
        self._models: deque[Vector] = deque(maxlen=window + 2)
        self._last: dict[ClientId, tuple[Vector, Vector]] = {}  # model before its update, the update
        self._scores: dict[ClientId, deque[float]] = {}
        self._window, self._rounds, self._scored = window, 0, 0

    def see(self, model: Vector, updates: Updates) -> None:
        """Add a round: the model before it, and the clients' updates."""
        start = self._trained_numbers(model)
        self._models.append(start)
        rows = {
            c: self._trained_numbers(row) for c, row in zip(updates.clients, updates.vectors, strict=True)
        }
        self._score(start, rows)
        self._last |= {client: (start, row) for client, row in rows.items()}
        self._rounds += 1

    def _trained_numbers(self, vector: Vector) -> Vector:
        parts = [vector[part] for part in self._trained] if self._trained else [vector]
        return np.concatenate(parts).astype(np.float32)

    def _score(self, start: Vector, rows: dict[ClientId, Vector]) -> None:
        known = [client for client in rows if client in self._last]
        if len(known) < 2:
            return
        corrections: dict[int, Matrix64] = {}  # one per model that a client last trained from
        errors = np.array([self._error(start, client, rows[client], corrections) for client in known])
        if not (np.isfinite(errors).all() and errors.sum() > 0):
            return
        self._scored += 1
        for client, error in zip(known, (errors * len(known) / errors.sum()).tolist(), strict=True):
            self._scores.setdefault(client, deque(maxlen=self._window)).append(error)

    def _error(self, start: Vector, client: ClientId, row: Vector, corrections: dict[int, Matrix64]) -> float:
        """Return the error of the prediction, ‖u - û‖."""
        model, earlier = self._last[client]
        if id(model) not in corrections:
            corrections[id(model)] = self._correction(np.asarray(start - model, np.float64))
        return float(np.linalg.norm(row - earlier - corrections[id(model)]))

    def _correction(self, moved: Matrix64) -> Matrix64:
        """Return H̃·moved; zero if there is no H̃ yet."""
        models = [model.astype(np.float64) for model in self._models]
        steps = [after - before for before, after in pairwise(models)]
        changes = [after - before for before, after in pairwise(steps)]
        if not changes or not moved.any():
            return np.zeros_like(moved)
        product = hessian_product(steps[:-1], changes, moved)
        return np.zeros_like(moved) if product is None else product

    def detection(self) -> Detection:
        """Return the detection after the rounds so far."""
        scores = {client: float(np.mean(errors)) for client, errors in self._scores.items()}
        everyone = {client: scores.get(client, 0.0) for client in self._last}
        if len(scores) < MIN_COUNT or self._scored < MIN_COUNT:
            note = "Too few rounds or clients: FLDetector needs several rounds of the same clients."
            return Detection("fldetector", self._rounds, everyone, {}, 0.0, (note,))
        return self._detect(scores, everyone)

    def _detect(self, scores: dict[ClientId, float], everyone: dict[ClientId, float]) -> Detection:
        values = np.array([*scores.values()])
        statistic = gaps(values)
        suspicions: dict[ClientId, Suspicion] = {}
        if statistic.groups > 1:
            error = max(float(statistic.error[1]), 1e-12)
            difference = float(statistic.gap[1] - statistic.gap[0])
            suspicion = Suspicion(REASON, min(NormalDist().cdf(difference / error), MAX_CONFIDENCE))
            upper = two_means(values).tolist()
            suspicions = {client: suspicion for client, high in zip(scores, upper, strict=True) if high}
        return Detection("fldetector", self._rounds, everyone, suspicions, exp(statistic.excess))


class WatchedFleet:
    """A fleet that passes the updates of ``fleet`` to ``detector``: detection during training."""

    def __init__(self, fleet: Fleet, detector: FLDetector) -> None:
        self.fleet, self.detector = fleet, detector

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """Return the updates of the fleet; the detector sees them first."""
        updates = self.fleet.train(model, clients, round=round, epochs=epochs)
        self.detector.see(model, updates)
        return updates


def fldetector(history: History, *, window: int = 10) -> Detection:
    """Return FLDetector's result for a recorded history.

    The scores are means over the last ``window`` rounds. Raises HistoryError if no round has been recorded,
    or if the history does not keep every update vector.
    """
    if not history.rounds:
        raise HistoryError(f"{history.path}: no round has been recorded, so no client can be judged")
    if not isinstance(history.charter.selection, Everything):
        raise HistoryError(
            f"{history.path}: keeps no update vectors, which fldetector needs; "
            "use the detector ledger, or record with Everything()"
        )
    detector = FLDetector(window=window, layout=history.charter.layout)
    for entry in history.rounds:
        detector.see(history.model(entry.index), history.updates(entry.index))
    return detector.detection()


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gap(k) and s_k, for k from 1."""

    gap: Matrix64
    error: Matrix64

    @property
    def groups(self) -> int:
        """The number of groups."""
        enough = self.gap[:-1] >= self.gap[1:] - self.error[1:]
        return int(np.argmax(enough)) + 1 if enough.any() else len(self.gap)

    @property
    def excess(self) -> float:
        """How much better two groups fit than one, minus the error; above 0 there is more than one group."""
        return float(self.gap[1] - self.error[1] - self.gap[0])


def gaps(values: Matrix64) -> Gaps:
    """Return the gap statistic of two or more numbers."""
    low, spread = values.min(), np.ptp(values)
    scaled = (values - low) / spread if spread > 0 else np.zeros(len(values))
    most, rng = min(MAX_GROUPS, len(values)), rng_for(0, "gap statistic", len(values))
    uniform = np.array([_log_squares(rng.random(len(values)), most) for _ in range(SAMPLES)])
    gap = uniform.mean(axis=0) - _log_squares(scaled, most)
    return Gaps(gap, uniform.std(axis=0) * np.sqrt(1 + 1 / SAMPLES))


def _log_squares(values: Matrix64, most: int) -> Matrix64:
    """Return log W_k for k from 1 to ``most``."""
    squares, _ = _k_means(np.sort(values), most)
    return np.asarray(np.log(np.maximum(squares[:, -1], LEAST_SQUARES)))


def two_means(values: Matrix64) -> NDArray[np.bool_]:
    """Return which of two or more numbers belong to the upper group of exact 2-means."""
    order = np.argsort(values, kind="stable")
    _, starts = _k_means(values[order], 2)
    upper = np.zeros(len(values), bool)
    upper[order[starts[1, -1] :]] = True
    return upper


def _k_means(ordered: Matrix64, most: int) -> tuple[Matrix64, NDArray[np.intp]]:
    """Return the least squares within k groups of the first j numbers, and where the last group starts."""
    costs = _squares_within(ordered)
    best, starts = [costs[0]], [np.zeros(len(ordered), np.intp)]
    for _ in range(1, most):
        before = np.concatenate([[np.inf], best[-1][:-1]])  # squares of the groups before the last one
        totals = before[:, None] + costs
        starts.append(np.argmin(totals, axis=0))
        best.append(totals.min(axis=0))
    return np.array(best), np.array(starts)


def _squares_within(ordered: Matrix64) -> Matrix64:
    """Return the sum of squares of the group from number i to number j; infinite if j < i."""
    centred = ordered - ordered.mean()
    sums, squares = (np.concatenate([[0.0], np.cumsum(x)]) for x in (centred, centred**2))
    n = np.arange(1, len(ordered) + 1)[None] - np.arange(len(ordered))[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        within = squares[None, 1:] - squares[:-1, None] - (sums[None, 1:] - sums[:-1, None]) ** 2 / n
    return np.where(n > 0, np.maximum(within, 0.0), np.inf)
