"""Who taught it: how much each client's updates taught the model a misbehaviour, round by round.

Given examples x′ with the label y′ that the model should not give, of client c in round t, to first order:

    a_t^c = −⟨∇_M CE(f(x′; M_t), y′), u_t^c⟩                   how much its update lowers that loss
    d_t^c = ⟨∇_M [o(x′, y′; M_t) − o(x, y′; M_t)], u_t^c⟩      how much more it raises the log odds o of y′
                                                              there than on plain examples x

a is TracIn (Pruthi et al., NeurIPS 2020) with clients for examples. An honest client with much data of class
y′ raises that class everywhere, so a sees it and d does not. Both are means over the rounds, weighted by
w_t = max(0, mean over clients of a_t), so that the rounds count in which it was learnt, and are given beside
the clients that taught most. Linear in clients and rounds; only update vectors are needed, also quantised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrab.audit.flat_model import FlatModel, Images, Labels
from fedcrab.detect.split import FEWEST, weigh
from fedcrab.errors import ConfigError, DamagedError, HistoryError
from fedcrab.history import History
from fedcrab.types import ClientId, Updates, Vector
from fedcrab.vectors import Matrix64

TAUGHT = 0.45  # of what the clients that taught most did: who did as much is named
TOP = 0.1  # of the clients: those that taught most, two at least
MOST = 0.5  # of the clients; a rule that names more of them says nothing
QUARTER = 0.25  # of a teacher's mean part, from which on a round counts as taught


@dataclass(frozen=True, slots=True)
class Attribution:
    """Each client's part in a misbehaviour, over the rounds that could be looked at."""

    clients: tuple[ClientId, ...]
    rounds: tuple[int, ...]
    lowers: Matrix64  # (rounds, clients): a_t^c; NaN for who was not there
    contrast: Matrix64  # (rounds, clients): d_t^c

    @property
    def weights(self) -> Matrix64:
        """w_t = max(0, mean of a_t): which rounds taught it."""
        return np.maximum(np.nan_to_num(_row_mean(self.lowers)), 0.0)

    @property
    def parts(self) -> Matrix64:
        """Σ_t w_t d_t^c / Σ_t w_t of each client, 1 for those that taught most."""
        return beside_top(weighted(self.contrast, self.weights))

    @property
    def scores(self) -> Matrix64:
        """What clients are ranked by: the mean of both parts, each 1 for those that taught most."""
        return (beside_top(weighted(self.lowers, self.weights)) + self.parts) / 2

    @property
    def clearness(self) -> float:
        """How far the named stand from the others, beside what one group shows in 1 of 200 cases."""
        group = self.parts >= TAUGHT
        if len(self.clients) < FEWEST or not 0 < group.sum() <= MOST * len(self.clients):
            return 0.0
        return weigh(group, {"part": self.parts}, {"part": 0.0}).weight

    def named(self, *, clear: float) -> tuple[ClientId, ...]:
        """Who taught it: nobody unless they stand out so clearly."""
        if self.clearness < clear:
            return ()
        return tuple(client for client, part in zip(self.clients, self.parts, strict=True) if part >= TAUGHT)

    def onset(self, client: ClientId) -> int:
        """The round from which on this client taught it: the start of the greatest Σ (d_t − ¼ mean)."""
        own = self.contrast[:, self.clients.index(client)]
        level = QUARTER * float(np.nansum(own * self.weights) / max(float(self.weights.sum()), 1e-300))
        rest = np.cumsum(np.nan_to_num(own - level)[::-1])[::-1]
        return self.rounds[int(np.argmax(rest))]


def attribute(history: History, flat: FlatModel, x: Images, y: Labels, *, plain: Images) -> Attribution:
    """Each client's part in teaching that ``x`` are ``y``; ``plain`` are examples that are not to be ``y``.

    Looks at the rounds whose model and updates are kept. Raises HistoryError where no round has both.
    """
    if not len(x) or np.shape(y) != (len(x),) or not len(plain):
        raise ConfigError(
            f"needs misbehaving examples with a label each, and plain ones: got {len(x)}, "
            f"{np.shape(y)} and {len(plain)}"
        )
    labels = np.resize(
        np.asarray(y, np.int64), len(plain)
    )  # each plain example beside a label that is taught
    clients, place = history.clients, {client: i for i, client in enumerate(history.clients)}
    rounds: list[int] = []
    lowers: list[Matrix64] = []
    contrast: list[Matrix64] = []
    for t, model, updates in _taught_rounds(history):
        rows = np.array([place[client] for client in updates.clients], np.intp)
        loss = flat.gradient(model, x, y)
        odds = flat.odds_gradient(model, x, y) - flat.odds_gradient(model, plain, labels)
        for found, gradient in ((lowers, -loss), (contrast, odds)):
            found.append(np.full(len(clients), np.nan))
            found[-1][rows] = products(updates.vectors, gradient)
        rounds.append(t)
    if not rounds:
        raise HistoryError(
            f"{history.path}: keeps no update vectors, so who taught it cannot be told; record with "
            "Compact() or Everything()"
        )
    return Attribution(clients, tuple(rounds), np.array(lowers), np.array(contrast))


def _taught_rounds(history: History) -> Iterator[tuple[int, Vector, Updates]]:
    """The rounds whose model and updates are kept; damage is not passed over."""
    for t in range(len(history.rounds)):
        try:
            found = history.model(t), history.updates(t)
        except DamagedError:
            raise
        except HistoryError:
            continue
        if found[1].clients:
            yield t, *found


def products(vectors: NDArray[np.float32], gradient: Matrix64) -> Matrix64:
    """⟨gradient, u_c⟩ of each row, in float64, a row at a time."""
    return np.array([float(np.dot(row.astype(np.float64), gradient)) for row in vectors])


def weighted(parts: Matrix64, weights: Matrix64) -> Matrix64:
    """Σ_t w_t·part / Σ_t w_t over the rounds in which a client was there; 0 where it never counts."""
    there = np.isfinite(parts) * weights[:, None]
    totals = there.sum(axis=0)
    sums = np.where(np.isfinite(parts), parts, 0.0) * weights[:, None]
    return np.asarray(np.divide(sums.sum(axis=0), totals, out=np.zeros(len(totals)), where=totals > 0))


def beside_top(values: Matrix64) -> Matrix64:
    """The values beside the mean of the greatest tenth (two at least); 0 where that is not positive."""
    count = max(2, round(TOP * len(values)))
    top = float(np.mean(np.sort(values)[-count:])) if len(values) else 0.0
    return values / top if top > 0 else np.zeros(len(values))


def _row_mean(rows: Matrix64) -> Matrix64:
    there = np.isfinite(rows)
    return np.asarray(np.where(there, rows, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1))
