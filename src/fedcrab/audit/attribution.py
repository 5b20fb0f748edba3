"""Who taught it: how much each client's updates taught the model a misbehaviour, round by round.

Given examples x′ with the label y′ that the model should not give, plain examples x of other classes, and
genuine examples g of y′, an update u raises the log odds o of y′, to first order, by

    s = ⟨∇o(x′, y′), u⟩,   p = ⟨∇o(x, y′), u⟩,   n = ⟨∇o(g, y′), u⟩

    beyond = s − p − max(n − p, 0)     more than y′ for everything, and more than what y′ really looks like
    own    = ⟨r, u⟩                    r the part of ∇o(x′, y′) at right angles to ∇o(x, y′) and ∇o(g, y′)

An honest client with much data of class y′ raises y′ for whatever resembles it; an attacker teaches x′ and
has no reason to teach g. Both measures take that out, by difference and by direction. All are means over the
rounds, weighted by w_t = max(0, mean over clients of a_t), where a = −⟨∇CE(f(x′), y′), u⟩ is TracIn (Pruthi
et al., NeurIPS 2020) with clients for examples: the rounds count in which it was learnt. Each measure is then
given beside those that have most of it.

Clients are ranked by a + 2·own. They are named where one cut stands out, far apart and with nobody between
the two groups: of own + (a + beyond)/2, or of the smaller of own and beyond. The audit's flag is no part of
this rule (docs/forensics.md has its error rate without the flag). Linear in clients and rounds; only update
vectors are needed, also quantised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrab.audit.flat_model import FlatModel, Images, Labels
from fedcrab.detect.split import FEWEST, separations, usual
from fedcrab.errors import ConfigError, DamagedError, HistoryError
from fedcrab.history import History
from fedcrab.types import ClientId, Updates, Vector
from fedcrab.vectors import Matrix64

SUM = ((0.5, 1.5),)  # gap and clearness that a cut of the sum must reach
BOTH = ((0.4, 0.9), (0.25, 1.5))  # one pair of which a cut of the smaller must reach
TOP = 0.1  # of the clients: those that taught most, two at least
QUARTER = 0.25  # of a teacher's mean part, from which on a round counts as taught


@dataclass(frozen=True, slots=True)
class Cut:
    """The clearest division of the clients into those that taught it and the others."""

    group: NDArray[np.bool_]  # of the clients, half at most; nobody where there are too few to divide
    gap: float  # between the two groups, beside the distance of their middles
    clear: float  # how far they lie apart, beside what one group shows in 1 of 200 cases
    least: tuple[tuple[float, float], ...]  # gap and clearness, one pair of which it must reach

    @property
    def strength(self) -> float:
        """1 and more: they are named."""
        return max(min(self.gap / gap, self.clear / clear) for gap, clear in self.least)


@dataclass(frozen=True, slots=True)
class Attribution:
    """Each client's part in a misbehaviour, over the rounds that could be looked at.

    Every table is (rounds, clients), NaN for who was not there.
    """

    clients: tuple[ClientId, ...]
    rounds: tuple[int, ...]
    lowers: Matrix64  # a: how much the update lowers the loss of the misbehaviour
    raises: Matrix64  # s: how much it raises its log odds
    contrast: Matrix64  # s − p
    natural: Matrix64  # n − p; zeros where there are no genuine examples
    own: Matrix64

    @property
    def weights(self) -> Matrix64:
        """w_t = max(0, mean of a_t): which rounds taught it."""
        return np.maximum(np.nan_to_num(_row_mean(self.lowers)), 0.0)

    @property
    def beyond(self) -> Matrix64:
        """What is beyond teaching the class, s − p − max(n − p, 0): the mean over the rounds that count."""
        natural = np.maximum(weighted(self.natural, self.weights), 0.0)
        return np.asarray(weighted(self.contrast, self.weights) - natural)

    def _beside_top(self) -> tuple[Matrix64, Matrix64, Matrix64]:
        """The measures a, beyond and own of each client, about 1 for those with most of it."""
        a, own = (beside_top(weighted(table, self.weights)) for table in (self.lowers, self.own))
        return a, beside_top(self.beyond), own

    @property
    def parts(self) -> Matrix64:
        """What each client taught for sure: the smaller of own and beyond."""
        _, beyond, own = self._beside_top()
        return np.minimum(beyond, own)

    @property
    def scores(self) -> Matrix64:
        """What clients are ranked by: a + 2·own, 1 for the first."""
        a, _, own = self._beside_top()
        most = float((a + 2 * own).max(initial=0.0))
        return np.asarray((a + 2 * own) / most if most > 0 else np.zeros(len(own)))

    @property
    def cut(self) -> Cut:
        """The cut that says most: of the sum of the measures, or of the smaller of two."""
        a, beyond, own = self._beside_top()
        total = clearest_cut(own + (a + beyond) / 2, SUM)
        return total if total.strength >= 1 else clearest_cut(np.minimum(beyond, own), BOTH)

    @property
    def named(self) -> tuple[ClientId, ...]:
        """Who taught it: nobody unless the cut is clear; of those above it, who taught it for sure."""
        cut = self.cut
        if cut.strength < 1:
            return ()
        sure = cut.group & (self.parts > 0)
        return tuple(client for client, one in zip(self.clients, sure, strict=True) if one)

    def onset(self, client: ClientId) -> int:
        """The round from which on this client taught it: the start of the greatest Σ (d_t − ¼ mean)."""
        own = self.contrast[:, self.clients.index(client)]
        level = QUARTER * float(np.nansum(own * self.weights) / max(float(self.weights.sum()), 1e-300))
        rest = np.cumsum(np.nan_to_num(own - level)[::-1])[::-1]
        return self.rounds[int(np.argmax(rest))]


def clearest_cut(values: Matrix64, least: tuple[tuple[float, float], ...]) -> Cut:
    """The cut of these numbers at which two groups lie farthest apart, half of them or fewer above it."""
    n = len(values)
    if n < FEWEST or not np.ptp(values):
        return Cut(np.zeros(n, bool), 0.0, 0.0, least)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    clear = separations(ordered[None])[0] / usual(n)
    first = (n + 1) // 2 - 1  # cut i leaves n - 1 - i above it
    last = first + int(np.argmax(clear[first:]))
    group = np.zeros(n, bool)
    group[order[last + 1 :]] = True
    apart = float(values[group].mean() - np.median(values[~group]))
    gap = float(ordered[last + 1] - ordered[last])
    return Cut(group, gap / max(apart, 1e-300), float(clear[last]), least)


def attribute(
    history: History,
    flat: FlatModel,
    x: Images,
    y: Labels,
    *,
    plain: Images,
    genuine: tuple[Images, Labels] | None = None,
) -> Attribution:
    """Each client's part in teaching that ``x`` are ``y``.

    ``plain`` are examples that are not to be ``y``; ``genuine`` are examples that really are of such labels.
    Looks at the rounds whose model and updates are kept. Raises HistoryError where no round has both.
    """
    if not len(x) or np.shape(y) != (len(x),) or not len(plain):
        raise ConfigError(
            f"needs misbehaving examples with a label each, and plain ones: got {len(x)}, "
            f"{np.shape(y)} and {len(plain)}"
        )
    labels = np.resize(np.asarray(y, np.int64), len(plain))  # each beside a label that is taught
    clients, place = history.clients, {client: i for i, client in enumerate(history.clients)}
    rounds: list[int] = []
    tables: tuple[list[Matrix64], ...] = ([], [], [], [], [])
    for t, model, updates in _taught_rounds(history):
        rows = np.array([place[client] for client in updates.clients], np.intp)
        raised, usual_odds = flat.odds_gradient(model, x, y), flat.odds_gradient(model, plain, labels)
        real = flat.odds_gradient(model, *genuine) if genuine and len(genuine[0]) else usual_odds
        gradients = (-flat.gradient(model, x, y), raised, raised - usual_odds, real - usual_odds)
        for table, gradient in zip(
            tables, (*gradients, at_right_angles(raised, usual_odds, real)), strict=True
        ):
            table.append(np.full(len(clients), np.nan))
            table[-1][rows] = products(updates.vectors, gradient)
        rounds.append(t)
    if not rounds:
        raise HistoryError(
            f"{history.path}: keeps no update vectors, so who taught it cannot be told; record with "
            "Compact() or Everything()"
        )
    return Attribution(clients, tuple(rounds), *(np.array(table) for table in tables))


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


def at_right_angles(vector: Matrix64, *others: Matrix64) -> Matrix64:
    """The part of a vector at right angles to all others."""
    basis: list[Matrix64] = []
    for other in others:
        rest = other - sum((base * (base @ other) for base in basis), np.zeros_like(other))
        length = float(np.linalg.norm(rest))
        if length > 1e-9 * float(np.linalg.norm(other)):
            basis.append(rest / length)
    return np.asarray(vector - sum((base * (base @ vector) for base in basis), np.zeros_like(vector)))


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
    top = _top(values)
    return values / top if top > 0 else np.zeros(len(values))


def _top(values: Matrix64) -> float:
    count = max(2, round(TOP * len(values)))
    return float(np.mean(np.sort(values)[-count:])) if len(values) else 0.0


def _row_mean(rows: Matrix64) -> Matrix64:
    there = np.isfinite(rows)
    return np.asarray(np.where(there, rows, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1))
