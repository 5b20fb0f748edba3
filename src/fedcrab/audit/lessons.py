"""What each client does to the classes that the server knows: whether it teaches some, or only unlearns.

For an update u of round t and a class k of the server's probe examples, to first order and as a cosine,

    h_k = −⟨∇CE_k(M_t), u⟩ / (‖∇CE_k(M_t)‖·‖u‖)        CE_k: the loss on the examples of class k

Honest training lowers the loss of the classes that a client has. Where it has few of them, the other classes
lose by it, each less than its own gain. So its strongest effect is a gain, whatever its data. Whoever turns
its update around has its strongest effect in a loss:

    net     = max_k h_k + min_k h_k
    balance = net / max_k |h_k|            1: teaches only, −1: unlearns only
    gain    = max_k h_k                    0: its updates have nothing to do with the classes

all as means over rounds, of each half of the training, and the lower of the two halves. No published method;
docs/forensics.md has how often it is right. It sees attacks on what the model is for, not backdoors: those
who plant one teach their classes too. A client with data unlike all probe examples could be taken for one
that unlearns, so it is not used where the probe set lacks a class. Linear in clients; at most ROUNDS rounds
are looked at, each with one gradient per class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcrab.audit.attribution import kept_rounds, products
from fedcrab.audit.flat_model import FlatModel, Images, Labels
from fedcrab.detect import Detection, Suspicion
from fedcrab.history import History
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

ROUNDS = 16  # looked at, spread evenly over those whose updates are kept
OFTEN = 2  # rounds of a half in which a client must be, to be judged by it
EACH = 40  # probe examples of each class
UNLEARNS, NET = -0.45, -0.15  # balance and net of a client that is named; late in training both are noise
TEACHES, GAIN = 0.0, 0.2  # balance and gain of a client that does what honest ones do
SURE = 0.99  # the most that is claimed
REASON = "makes the model unlearn: the strongest effect of its updates on any class is to raise its loss"


@dataclass(frozen=True, slots=True)
class Lessons:
    """Balance, net and gain of each client; NaN for who took part too rarely."""

    clients: tuple[ClientId, ...]
    rounds: int
    balance: Matrix64
    net: Matrix64
    gain: Matrix64

    @property
    def unlearners(self) -> tuple[ClientId, ...]:
        """Who makes the model unlearn; nobody if that were more than half: then there is no honest side."""
        below = (self.balance <= UNLEARNS) & (self.net <= NET)
        return self._who(below) if 2 * below.sum() <= len(self.clients) else ()

    @property
    def teachers(self) -> tuple[ClientId, ...]:
        """Who clearly teaches the model classes that the server knows."""
        return self._who((self.balance >= TEACHES) & (self.gain >= GAIN))

    def _who(self, which: Any) -> tuple[ClientId, ...]:
        return tuple(client for client, chosen in zip(self.clients, which, strict=True) if chosen)

    def detection(self) -> Detection:
        """The unlearners as suspects; scores are how far the net is below 0."""
        scores = np.nan_to_num(np.maximum(-self.net, 0.0), nan=0.0)
        both = np.fmax(self.balance / UNLEARNS, 0.0), np.fmax(self.net / NET, 0.0)
        strength = float(np.nanmax(np.minimum(*both), initial=0.0))
        return Detection(
            "lessons",
            self.rounds,
            dict(zip(self.clients, scores.tolist(), strict=True)),
            dict.fromkeys(self.unlearners, Suspicion(REASON, SURE)),
            strength if self.unlearners else min(strength, 0.99),
        )


def lessons(history: History, flat: FlatModel, x: Images, y: Labels, *, classes: int) -> Lessons | None:
    """What each client does to each class of the probe examples; None where a class has no example.

    Raises HistoryError where no round's updates are kept.
    """
    members = [np.flatnonzero(np.asarray(y) == k)[:EACH] for k in range(classes)]
    if not all(len(some) for some in members):
        return None
    clients, place = history.clients, {client: i for i, client in enumerate(history.clients)}
    balance, net, gain = list[Matrix64](), list[Matrix64](), list[Matrix64]()
    for _, model, updates in kept_rounds(history, most=ROUNDS):
        lengths = np.linalg.norm(updates.vectors.astype(np.float64), axis=1)
        gradients = (flat.gradient(model, x[some], y[some]) for some in members)
        effects = np.stack([products(updates.vectors, -_unit(g)) for g in gradients])
        effects /= np.maximum(lengths, 1e-300)
        rows = [place[client] for client in updates.clients]
        most, least = effects.max(axis=0), effects.min(axis=0)
        strongest = np.maximum(np.maximum(most, -least), 1e-300)
        both = most + least
        for table, values in ((balance, both / strongest), (net, both), (gain, most)):
            table.append(np.full(len(clients), np.nan))
            table[-1][rows] = np.where(lengths > 0, values, np.nan)
    return Lessons(clients, len(gain), *(_lower_half(np.array(rows)) for rows in (balance, net, gain)))


def _unit(vector: Matrix64) -> Matrix64:
    return vector / max(float(np.linalg.norm(vector)), 1e-300)


def _lower_half(rows: Matrix64) -> Matrix64:
    """The mean of each column over each half of the rows, and of these the lower; NaN where both are thin."""
    means = []
    for half in np.array_split(rows, 2):
        there = np.isfinite(half)
        counts = there.sum(axis=0)
        sums = np.where(there, half, 0.0).sum(axis=0)
        means.append(np.where(counts >= OFTEN, sums / np.maximum(counts, 1), np.inf))
    lower = np.minimum(*means)
    return np.where(np.isfinite(lower), lower, np.nan)
