"""FLDetector: malicious clients' updates are not what their earlier ones and the model's path predict.

    û_i = u_i^s + H̃·(M_t - M_s)
    score_i = mean over the last N rounds of ‖u_i^t - û_i‖ / Σ_j ‖u_j^t - û_j‖

s the last round of client i before t, H̃ the L-BFGS estimate from the last N pairs of model differences
M_t - M_{t-1} and differences of the steps taken there. More than one group by the gap statistic is an attack;
of two means, those with the larger scores are malicious.

Zhang, Cao, Jia, Gong, "FLDetector: Defending Federated Learning Against Model Poisoning Attacks via Detecting
Malicious Clients", KDD 2022. Departs from it: a client that missed rounds is predicted from its last update
(in print s = t - 1, where all take part in all rounds); where the pairs determine no H̃ the last update is
the prediction; scores are multiplied by the number of clients, so that 1 is usual; over a recorded history
the decision is taken once, at its end (in print after every round, which :class:`FLDetector` allows).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import exp
from statistics import NormalDist

import numpy as np

from fedcrab.detect.detection import Detection, Suspicion
from fedcrab.detect.split import gaps, two_means
from fedcrab.errors import ConfigError, HistoryError
from fedcrab.history import Everything, History
from fedcrab.lbfgs import hessian_product
from fedcrab.types import ClientId, Fleet, Layout, Updates, Vector
from fedcrab.vectors import Matrix64

FEWEST, SURE = 3, 0.999
WHY = "updates that its earlier ones do not predict"


class FLDetector:
    """Follows a training, round by round."""

    def __init__(self, *, window: int = 10, layout: Layout | None = None) -> None:
        """``window`` is N; ``layout`` tells trained numbers from others, which are not looked at."""
        if not isinstance(window, int) or isinstance(window, bool) or window < 1:
            raise ConfigError(f"window must be a whole number of 1 or more, got {window!r}")
        self._trained = layout.trained() if layout else None
        self._models: deque[Vector] = deque(maxlen=window + 2)
        self._last: dict[ClientId, tuple[Vector, Vector]] = {}  # the model it trained from, its update
        self._scores: dict[ClientId, deque[float]] = {}
        self._window, self._rounds, self._scored = window, 0, 0

    def see(self, model: Vector, updates: Updates) -> None:
        """Take in a round: the model before it and the clients' updates from it."""
        start = self._of(model)
        self._models.append(start)
        rows = {c: self._of(row) for c, row in zip(updates.clients, updates.vectors, strict=True)}
        self._score(start, rows)
        self._last |= {client: (start, row) for client, row in rows.items()}
        self._rounds += 1

    def _of(self, vector: Vector) -> Vector:
        """The trained numbers."""
        parts = [vector[part] for part in self._trained] if self._trained else [vector]
        return np.concatenate(parts).astype(np.float32)

    def _score(self, start: Vector, rows: dict[ClientId, Vector]) -> None:
        known = [client for client in rows if client in self._last]
        if len(known) < 2:
            return
        corrections: dict[int, Matrix64] = {}  # by the model that a client last trained from
        misses = np.array([self._miss(start, client, rows[client], corrections) for client in known])
        if not (np.isfinite(misses).all() and misses.sum() > 0):
            return
        self._scored += 1
        for client, miss in zip(known, (misses * len(known) / misses.sum()).tolist(), strict=True):
            self._scores.setdefault(client, deque(maxlen=self._window)).append(miss)

    def _miss(self, start: Vector, client: ClientId, row: Vector, corrections: dict[int, Matrix64]) -> float:
        """‖u - û‖."""
        model, earlier = self._last[client]
        if id(model) not in corrections:
            corrections[id(model)] = self._correction(np.asarray(start - model, np.float64))
        return float(np.linalg.norm(row - earlier - corrections[id(model)]))

    def _correction(self, moved: Matrix64) -> Matrix64:
        """H̃·moved, or nothing where there is no H̃ yet."""
        models = [model.astype(np.float64) for model in self._models]
        steps = [after - before for before, after in pairwise(models)]
        changes = [after - before for before, after in pairwise(steps)]
        if not changes or not moved.any():
            return np.zeros_like(moved)
        product = hessian_product(steps[:-1], changes, moved)
        return np.zeros_like(moved) if product is None else product

    def detection(self) -> Detection:
        """What the rounds so far say."""
        scores = {client: float(np.mean(of)) for client, of in self._scores.items()}
        everyone = {client: scores.get(client, 0.0) for client in self._last}
        if len(scores) < FEWEST or self._scored < FEWEST:
            few = "Too few rounds or clients: FLDetector needs some rounds of the same clients."
            return Detection("fldetector", self._rounds, everyone, {}, 0.0, (few,))
        return self._judge(scores, everyone)

    def _judge(self, scores: dict[ClientId, float], everyone: dict[ClientId, float]) -> Detection:
        values = np.array([*scores.values()])
        found = gaps(values)
        suspicions: dict[ClientId, Suspicion] = {}
        if found.groups > 1:
            error = max(float(found.error[1]), 1e-12)
            sure = min(NormalDist().cdf(float(found.gap[1] - found.gap[0]) / error), SURE)
            upper = two_means(values).tolist()
            suspicions = {c: Suspicion(WHY, sure) for c, high in zip(scores, upper, strict=True) if high}
        return Detection("fldetector", self._rounds, everyone, suspicions, exp(found.excess))


class WatchedFleet:
    """A fleet around a fleet whose rounds a detector follows: detection while training."""

    def __init__(self, fleet: Fleet, detector: FLDetector) -> None:
        self.fleet, self.detector = fleet, detector

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """The fleet's updates, seen by the detector."""
        updates = self.fleet.train(model, clients, round=round, epochs=epochs)
        self.detector.see(model, updates)
        return updates


def fldetector(history: History, *, window: int = 10) -> Detection:
    """Judge the clients of a history that keeps every update vector, by its last ``window`` rounds."""
    if not history.rounds:
        raise HistoryError(f"{history.path}: no round has been recorded, there is nothing to judge")
    if not isinstance(history.charter.selection, Everything):
        raise HistoryError(
            f"{history.path}: keeps no update vectors, which fldetector needs; "
            "detect with ledger, or record with Everything()"
        )
    detector = FLDetector(window=window, layout=history.charter.layout)
    for entry in history.rounds:
        detector.see(history.model(entry.index), history.updates(entry.index))
    return detector.detection()
