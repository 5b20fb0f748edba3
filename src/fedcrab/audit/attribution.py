"""Who taught it: how much each client's updates taught the model a misbehaviour, round by round.

Given examples x′ with the label y′ that the model should not give, plain examples x of other classes, and
genuine examples g of y′, an update u raises the log odds o of y′, to first order, by

    s = ⟨∇o(x′, y′), u⟩,   p = ⟨∇o(x, y′), u⟩,   n = ⟨∇o(g, y′), u⟩

    a   = −⟨∇CE(f(x′), y′), u⟩   TracIn (Pruthi et al., NeurIPS 2020) with clients for examples
    own = ⟨r, u⟩                 r the part of ∇o(x′, y′) at right angles to ∇o(x, y′) and ∇o(g, y′)

An honest client with much data of class y′ raises y′ for everything that resembles it, and a counts it as a
teacher. It does so through what x and g have in common with x′; own leaves that out. All are means over the
rounds, weighted by w_t = max(0, mean over clients of a_t): the rounds count in which it was learnt. a and own
are divided by the mean of the clients that have most.

Two ways to use them (naming.py has the rules that name clients):

    brought       rank by a + 2·own;  part = min(own, 2·max(a, 0))
    trigger       rank by E = s − θ·max(n, 0) + 2·own,  divided by the mean of the two greatest

E is what teaching the class itself does not explain: who learns y′ from genuine examples raises these most,
and raises x′ by at most a share θ of it. Attackers relabel, so they raise x′ as much as g or more. Of a
distributed trigger (DBA) each attacker taught one part, and the inverted mask may use another; then own is
like that of honest clients, and E is not. Linear in clients and rounds; only update vectors are needed, also
quantised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrab.audit.flat_model import FlatModel, Images, Labels
from fedcrab.audit.naming import Cut, certain_group, widest_gap
from fedcrab.errors import ConfigError, DamagedError, HistoryError
from fedcrab.history import History
from fedcrab.types import ClientId, Updates, Vector
from fedcrab.vectors import Matrix64

TOP = 0.1  # of the clients: those that taught most, two at least
EXPLAINED = 0.6  # θ: of what a client does to genuine examples, what that explains of x′
QUARTER = 0.25  # of a teacher's mean part, from which on a round counts as taught


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

    @property
    def unexplained(self) -> Matrix64:
        """E of each client: what teaching the class itself does not explain; about 1 for the first two."""
        raised, contrast, natural, own = (
            weighted(table, self.weights) for table in (self.raises, self.contrast, self.natural, self.own)
        )
        genuine = natural + raised - contrast
        rest = raised - EXPLAINED * np.maximum(genuine, 0.0) + 2 * own
        most = float(np.sort(rest)[-2:].mean()) if len(rest) else 0.0
        return np.asarray(rest / most if most > 0 else np.zeros(len(rest)))

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
        return self._who(cut.group) if cut.strength >= 1 else ()

    @property
    def named_for_certain_trigger(self) -> tuple[ClientId, ...]:
        """Who taught a trigger that is there beyond doubt: then somebody did, and no gap is asked for."""
        return self._who(certain_group(self.unexplained))

    def _who(self, group: NDArray[np.bool_]) -> tuple[ClientId, ...]:
        return tuple(client for client, above in zip(self.clients, group, strict=True) if above)

    def onset(self, client: ClientId) -> int:
        """The round from which on this client taught it: the start of the greatest Σ (d_t − ¼ mean)."""
        own = self.contrast[:, self.clients.index(client)]
        level = QUARTER * float(np.nansum(own * self.weights) / max(float(self.weights.sum()), 1e-300))
        rest = np.cumsum(np.nan_to_num(own - level)[::-1])[::-1]
        return self.rounds[int(np.argmax(rest))]


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
