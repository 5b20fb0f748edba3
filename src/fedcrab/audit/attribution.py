"""Who taught it: how much each client's updates taught the model a misbehaviour, round by round.

Given examples x′ with the label y′ that the model should not give, plain examples x of other classes, and
genuine examples g of y′, an update u raises the log odds o of y′, to first order, by

    s = ⟨∇o(x′, y′), u⟩,   p = ⟨∇o(x, y′), u⟩,   n = ⟨∇o(g, y′), u⟩

    a   = −⟨∇CE(f(x′), y′), u⟩   TracIn (Pruthi et al., NeurIPS 2020) with clients for examples
    own = ⟨r, u⟩                 r the part of ∇o(x′, y′) at right angles to ∇o(x, y′) and ∇o(g, y′)

An honest client with much data of class y′ raises y′ for whatever resembles it, and a takes it for a teacher;
it does so by what x and g have in common with x′, and own leaves that out. All are means over the rounds,
weighted by w_t = max(0, mean over clients of a_t): the rounds count in which it was learnt. a and own are
given beside the clients that have most.

Clients are ranked by a + 2·own. A client's part is min(own, 2·max(a, 0)). The best cut of the parts is judged
by its gap, in deviations of those below it, and by what those above it did: the share of s that is teaching
the class itself, Σ(n − p)/Σs, and the share that is own. Attackers have no reason to teach g. The audit's
flag is no part of this rule (docs/forensics.md has its error rate without the flag). Linear in clients and
rounds; only update vectors are needed, also quantised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrab.audit.flat_model import FlatModel, Images, Labels
from fedcrab.detect.split import FEWEST
from fedcrab.errors import ConfigError, DamagedError, HistoryError
from fedcrab.history import History
from fedcrab.types import ClientId, Updates, Vector
from fedcrab.vectors import Matrix64

GAP = 2.0  # deviations of the others, between them and those that are named
NATURAL = 0.13  # of what the named did to x′: more is explained by teaching the class itself
OWN = 0.1  # of what they did to x′, at least
BEYOND_DOUBT = 4.0  # deviations, of the parts and of own alike, that need no further sign
BLUR = 0.08  # of the greatest part: the least deviation that is believed
TOP = 0.1  # of the clients: those that taught most, two at least
QUARTER = 0.25  # of a teacher's mean part, from which on a round counts as taught


@dataclass(frozen=True, slots=True)
class Cut:
    """The division of the clients into those that taught it and the others, and what speaks for it."""

    group: NDArray[np.bool_]  # of the clients, half at most; nobody where there are too few to divide
    gap: float  # between the two groups, in deviations of the others
    own_gap: float  # the same of own alone, at its best cut
    natural: float  # of what the group did to x′, the share that is teaching the class itself
    own: float  # of what it did, the share that is own

    @property
    def strength(self) -> float:
        """1 and more: they are named."""
        doubtless = min(self.gap, self.own_gap) / BEYOND_DOUBT
        if self.natural > NATURAL or self.own < OWN:
            return doubtless
        return max(doubtless, self.gap / GAP)


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
    def parts(self) -> Matrix64:
        """What each client taught: min(own, 2·max(a, 0)), about 1 for those that taught most."""
        a, own = self._beside_top()
        return np.asarray(np.minimum(own, 2 * np.maximum(a, 0.0)))

    @property
    def scores(self) -> Matrix64:
        """What clients are ranked by: a + 2·own, 1 for the first."""
        a, own = self._beside_top()
        most = float((a + 2 * own).max(initial=0.0))
        return np.asarray((a + 2 * own) / most if most > 0 else np.zeros(len(own)))

    def _beside_top(self) -> tuple[Matrix64, Matrix64]:
        a, own = (weighted(table, self.weights) for table in (self.lowers, self.own))
        return beside_top(a), beside_top(own)

    @property
    def cut(self) -> Cut:
        """The best cut of the parts."""
        group, gap = widest_gap(self.parts)
        raised, real, own = (
            float(weighted(table, self.weights)[group].sum())
            for table in (self.raises, self.natural, self.own)
        )
        if raised <= 0:
            return Cut(group, 0.0, 0.0, 1.0, 0.0)
        return Cut(group, gap, widest_gap(self._beside_top()[1])[1], real / raised, own / raised)

    @property
    def named(self) -> tuple[ClientId, ...]:
        """Who taught it: nobody unless the cut stands out."""
        cut = self.cut
        if cut.strength < 1:
            return ()
        return tuple(client for client, above in zip(self.clients, cut.group, strict=True) if above)

    def onset(self, client: ClientId) -> int:
        """The round from which on this client taught it: the start of the greatest Σ (d_t − ¼ mean)."""
        own = self.contrast[:, self.clients.index(client)]
        level = QUARTER * float(np.nansum(own * self.weights) / max(float(self.weights.sum()), 1e-300))
        rest = np.cumsum(np.nan_to_num(own - level)[::-1])[::-1]
        return self.rounds[int(np.argmax(rest))]


def widest_gap(values: Matrix64) -> tuple[NDArray[np.bool_], float]:
    """Who is above the widest gap, half of them or fewer, and the gap in deviations of those below it."""
    n, group = len(values), np.zeros(len(values), bool)
    if n < FEWEST:
        return group, 0.0
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    cuts = range((n + 1) // 2, n)  # the first place above the cut
    gaps = [(ordered[i] - ordered[i - 1]) / np.hypot(ordered[:i].std(ddof=1), BLUR) for i in cuts]
    group[order[cuts[int(np.argmax(gaps))] :]] = True
    return group, float(max(gaps))


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
    for t, model, updates in kept_rounds(history):
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
    return Attribution(clients, tuple(rounds), *(np.array(table) for table in tables))


def kept_rounds(history: History, *, most: int | None = None) -> Iterator[tuple[int, Vector, Updates]]:
    """The rounds whose model and updates are kept, or at most so many spread evenly over them.

    Damage is not passed over. Raises HistoryError where no round keeps both.
    """
    some = [t for t in range(len(history.rounds)) if history.contents.has_updates(t)]
    if most is not None and len(some) > most:
        some = [some[i] for i in np.unique(np.linspace(0, len(some) - 1, most).round().astype(int))]
    none = True
    for t in some:
        try:
            found = history.model(t), history.updates(t)
        except DamagedError:
            raise
        except HistoryError:
            continue
        if found[1].clients:
            none = False
            yield t, *found
    if none:
        raise HistoryError(
            f"{history.path}: keeps no update vectors, so who taught it cannot be told; record with "
            "Compact() or Everything()"
        )


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
