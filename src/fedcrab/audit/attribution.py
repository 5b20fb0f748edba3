"""Attribution: how much the updates of each client taught the model a misbehaviour, round by round.

The input are examples x′ with the label y′ that the model should not give, plain examples x of other
classes, and genuine examples g of y′. To first order, an update u raises the log odds o of y′ by

    s = ⟨∇o(x′, y′), u⟩,   p = ⟨∇o(x, y′), u⟩,   n = ⟨∇o(g, y′), u⟩

    a   = −⟨∇CE(f(x′), y′), u⟩   TracIn (Pruthi et al., NeurIPS 2020), per client rather than per example
    own = ⟨r, u⟩                 r: the component of ∇o(x′, y′) orthogonal to ∇o(x, y′) and ∇o(g, y′)

An honest client with much data of class y′ raises y′ for everything that resembles this class, so its a is
large. The cause is what x and g have in common with x′; own leaves that out. All numbers are means over the
rounds, weighted by w_t = max(0, mean over clients of a_t), so that the rounds count in which the model learnt
it. a and own are divided by the mean of the largest values.

There are two uses (naming.py has the rules that name clients):

    examples of the operator    rank by a + 2·own;  part = min(own, 2·max(a, 0))
    trigger of the audit        rank by E = s − θ·max(n, 0) + 2·own,  over the mean of the two largest

E is what teaching the class itself does not explain. A client that learns y′ from genuine examples raises
those most, and raises x′ by at most a share θ of that. Attackers relabel examples, so they raise x′ as much
as g, or more. With a distributed trigger (DBA) each attacker taught one part, and the inverted mask may use
another part; then own does not distinguish attackers from honest clients, but E does. The cost is linear in
clients and rounds. Only update vectors are needed; quantised ones are enough.
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

TOP = 0.1  # of the clients: the largest values, at least two
EXPLAINED = 0.6  # θ: the largest effect on x′ that an effect of 1 on genuine examples explains
ONSET_SHARE = 0.25  # of a client's mean s − p; a round above this counts towards the onset


@dataclass(frozen=True, slots=True)
class Attribution:
    """The effect of each client on a misbehaviour, over the rounds whose updates are kept.

    Every array is (rounds, clients), with NaN for a client that was not in the round.
    """

    clients: tuple[ClientId, ...]
    rounds: tuple[int, ...]
    lowers: Matrix64  # a: how much the update lowers the loss of the misbehaviour
    raises: Matrix64  # s: how much it raises its log odds
    contrast: Matrix64  # s − p
    natural: Matrix64  # n − p; zeros if there are no genuine examples
    own: Matrix64

    @property
    def weights(self) -> Matrix64:
        """The weights of the rounds, w_t = max(0, mean of a_t)."""
        return np.maximum(np.nan_to_num(_row_mean(self.lowers)), 0.0)

    @property
    def parts(self) -> Matrix64:
        """How much each client taught: min(own, 2·max(a, 0)), about 1 for the clients that taught most."""
        a, own = self._relative_to_top()
        return np.asarray(np.minimum(own, 2 * np.maximum(a, 0.0)))

    @property
    def scores(self) -> Matrix64:
        """The ranking for examples of the operator: a + 2·own, 1 for the first client."""
        a, own = self._relative_to_top()
        most = float((a + 2 * own).max(initial=0.0))
        return np.asarray((a + 2 * own) / most if most > 0 else np.zeros(len(own)))

    @property
    def unexplained(self) -> Matrix64:
        """E of each client, which teaching the class itself does not explain; about 1 for the first two."""
        raised, contrast, natural, own = (
            weighted(table, self.weights) for table in (self.raises, self.contrast, self.natural, self.own)
        )
        genuine = natural + raised - contrast
        rest = raised - EXPLAINED * np.maximum(genuine, 0.0) + 2 * own
        most = float(np.sort(rest)[-2:].mean()) if len(rest) else 0.0
        return np.asarray(rest / most if most > 0 else np.zeros(len(rest)))

    def _relative_to_top(self) -> tuple[Matrix64, Matrix64]:
        a, own = (weighted(table, self.weights) for table in (self.lowers, self.own))
        return relative_to_top(a), relative_to_top(own)

    @property
    def cut(self) -> Cut:
        """The best cut of the parts into those that taught it and the others."""
        group, gap = widest_gap(self.parts)
        raised, real, own = (
            float(weighted(table, self.weights)[group].sum())
            for table in (self.raises, self.natural, self.own)
        )
        if raised <= 0:
            return Cut(group, 0.0, 0.0, 1.0, 0.0)
        return Cut(group, gap, widest_gap(self._relative_to_top()[1])[1], real / raised, own / raised)

    @property
    def named(self) -> tuple[ClientId, ...]:
        """The clients that taught it; empty unless the cut is clear."""
        cut = self.cut
        return self._members(cut.group) if cut.strength >= 1 else ()

    @property
    def named_for_certain_trigger(self) -> tuple[ClientId, ...]:
        """The clients that taught a trigger whose existence is certain; the cut need not be clear then."""
        return self._members(certain_group(self.unexplained))

    def _members(self, group: NDArray[np.bool_]) -> tuple[ClientId, ...]:
        return tuple(client for client, member in zip(self.clients, group, strict=True) if member)

    def onset(self, client: ClientId) -> int:
        """Return the first round in which this client taught it: the t that maximises Σ_{≥t} (d − ¼ mean d).

        d is the client's s − p.
        """
        contrast = self.contrast[:, self.clients.index(client)]
        mean = float(np.nansum(contrast * self.weights) / max(float(self.weights.sum()), 1e-300))
        from_here = np.cumsum(np.nan_to_num(contrast - ONSET_SHARE * mean)[::-1])[::-1]
        return self.rounds[int(np.argmax(from_here))]


def attribute(
    history: History,
    flat: FlatModel,
    x: Images,
    y: Labels,
    *,
    plain: Images,
    genuine: tuple[Images, Labels] | None = None,
) -> Attribution:
    """Return how much each client taught the model to give the labels ``y`` to the examples ``x``.

    ``plain`` are examples that should not get these labels; ``genuine`` are examples with such labels that
    have them rightly. The rounds whose model and updates are kept are examined. Raises HistoryError if there
    is no such round, and ConfigError if there are no examples, no plain ones, or not one label per example.
    """
    if not len(x) or np.shape(y) != (len(x),) or not len(plain):
        raise ConfigError(
            "attribution needs misbehaving examples, one label per example, and plain examples; got "
            f"{len(x)} examples, labels of shape {np.shape(y)} and {len(plain)} plain examples"
        )
    labels = np.resize(np.asarray(y, np.int64), len(plain))  # plain examples with the labels in question
    clients, place = history.clients, {client: i for i, client in enumerate(history.clients)}
    rounds: list[int] = []
    tables: tuple[list[Matrix64], ...] = ([], [], [], [], [])
    for t, model, updates in kept_rounds(history):
        rows = np.array([place[client] for client in updates.clients], np.intp)
        raised, usual_odds = flat.odds_gradient(model, x, y), flat.odds_gradient(model, plain, labels)
        real = flat.odds_gradient(model, *genuine) if genuine and len(genuine[0]) else usual_odds
        gradients = (-flat.gradient(model, x, y), raised, raised - usual_odds, real - usual_odds)
        for table, gradient in zip(
            tables, (*gradients, orthogonal_part(raised, usual_odds, real)), strict=True
        ):
            table.append(np.full(len(clients), np.nan))
            table[-1][rows] = products(updates.vectors, gradient)
        rounds.append(t)
    return Attribution(clients, tuple(rounds), *(np.array(table) for table in tables))


def kept_rounds(history: History, *, most: int | None = None) -> Iterator[tuple[int, Vector, Updates]]:
    """Yield the round, the model before it and the updates, for each round that keeps both.

    With ``most``, at most this many rounds, evenly spaced. Raises HistoryError if no round keeps both, and
    DamagedError if a file is damaged.
    """
    rounds = [t for t in range(len(history.rounds)) if history.contents.has_updates(t)]
    if most is not None and len(rounds) > most:
        rounds = [rounds[i] for i in np.unique(np.linspace(0, len(rounds) - 1, most).round().astype(int))]
    empty = True
    for t in rounds:
        try:
            model, updates = history.model(t), history.updates(t)
        except DamagedError:
            raise
        except HistoryError:
            continue
        if updates.clients:
            empty = False
            yield t, model, updates
    if empty:
        raise HistoryError(
            f"{history.path}: keeps no update vectors, which attribution needs; record with Compact() or "
            "Everything()"
        )


def orthogonal_part(vector: Matrix64, *others: Matrix64) -> Matrix64:
    """Return the component of a vector that is orthogonal to all others."""
    basis: list[Matrix64] = []
    for other in others:
        rest = other - sum((base * (base @ other) for base in basis), np.zeros_like(other))
        length = float(np.linalg.norm(rest))
        if length > 1e-9 * float(np.linalg.norm(other)):
            basis.append(rest / length)
    return np.asarray(vector - sum((base * (base @ vector) for base in basis), np.zeros_like(vector)))


def products(vectors: NDArray[np.float32], gradient: Matrix64) -> Matrix64:
    """Return ⟨gradient, u⟩ for each row u, in float64; one row at a time saves memory."""
    return np.array([float(np.dot(row.astype(np.float64), gradient)) for row in vectors])


def weighted(values: Matrix64, weights: Matrix64) -> Matrix64:
    """Return Σ_t w_t·value / Σ_t w_t over each client's rounds; 0 if its weights sum to 0."""
    present = np.isfinite(values) * weights[:, None]
    totals = present.sum(axis=0)
    sums = np.where(np.isfinite(values), values, 0.0) * weights[:, None]
    return np.asarray(np.divide(sums.sum(axis=0), totals, out=np.zeros(len(totals)), where=totals > 0))


def relative_to_top(values: Matrix64) -> Matrix64:
    """Return the values over the mean of the largest tenth (at least two); zeros if it is not positive."""
    count = max(2, round(TOP * len(values)))
    top = float(np.mean(np.sort(values)[-count:])) if len(values) else 0.0
    return values / top if top > 0 else np.zeros(len(values))


def _row_mean(rows: Matrix64) -> Matrix64:
    present = np.isfinite(rows)
    return np.asarray(np.where(present, rows, 0.0).sum(axis=1) / np.maximum(present.sum(axis=1), 1))
