"""Lessons: whether a client teaches the model some of the server's classes, or makes it unlearn them.

For an update u of round t and a class k of the server's probe examples, the effect to first order, as a
cosine, is

    h_k = −⟨∇CE_k(M_t), u⟩ / (‖∇CE_k(M_t)‖·‖u‖)        CE_k: the loss on the examples of class k

Honest training lowers the loss of the client's own classes. If the client has few classes, the loss of the
others rises, but each by less. So the strongest effect of an honest client is positive, whatever its data.
If an update is reversed, its strongest effect is negative:

    net     = max_k h_k + min_k h_k
    balance = net / max_k |h_k|            1: only teaches, −1: only makes the model unlearn
    gain    = max_k h_k                    0: its updates have nothing to do with the classes

Each is a mean over rounds, per half of the training; the lower half counts. This is not a published method;
docs/forensics.md reports how often it is right. It detects attacks on the accuracy of the model, not
backdoors: a client that plants a backdoor also teaches its classes. A client whose data resemble no probe
example could seem to make the model unlearn, so lessons are not used if the probe set lacks a class. The
cost is linear in clients; at most ROUNDS rounds are examined, with one gradient per class each.

:func:`spare` uses them for suspects of the ledger's detector. Clients with similar data, unlike the others',
form a group, as attackers do. If they teach, their data explain a group that is not very clear.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedcrab.audit.attribution import kept_rounds, products
from fedcrab.audit.flat_model import FlatModel, Images, Labels
from fedcrab.detect import Detection, Suspicion
from fedcrab.detect.ledger import COPIES
from fedcrab.history import History
from fedcrab.rollback.warnings import join_ids
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

ROUNDS = 16  # examined, evenly spaced among those whose updates are kept
OFTEN = 2  # rounds that a client needs in a half for this half to count
EACH = 40  # probe examples per class
UNLEARNS, NET = -0.45, -0.15  # a client with this balance and net, or less, is named
TEACHES, GAIN = 0.0, 0.2  # a client with this balance and gain, or more, teaches
CONFIDENCE = 0.99
REASON = "makes the model unlearn: the strongest effect of its updates on any class is to raise its loss"
CLEAR = 1.4  # strength from which the suspects of the ledger are not spared


@dataclass(frozen=True, slots=True)
class Lessons:
    """Balance, net and gain of each client; NaN for a client that took part too rarely."""

    clients: tuple[ClientId, ...]
    rounds: int
    balance: Matrix64
    net: Matrix64
    gain: Matrix64

    @property
    def unlearners(self) -> tuple[ClientId, ...]:
        """The clients that make the model unlearn; empty if they are more than half of all clients."""
        below = (self.balance <= UNLEARNS) & (self.net <= NET)
        return self._members(below) if 2 * below.sum() <= len(self.clients) else ()

    @property
    def teachers(self) -> tuple[ClientId, ...]:
        """The clients that clearly teach the model classes of the probe examples."""
        return self._members((self.balance >= TEACHES) & (self.gain >= GAIN))

    def _members(self, group: NDArray[np.bool_]) -> tuple[ClientId, ...]:
        return tuple(client for client, member in zip(self.clients, group, strict=True) if member)

    def detection(self) -> Detection:
        """Return a detection with the unlearners as suspects; a score is how far the net is below 0."""
        scores = np.nan_to_num(np.maximum(-self.net, 0.0), nan=0.0)
        fractions = np.fmax(self.balance / UNLEARNS, 0.0), np.fmax(self.net / NET, 0.0)
        strength = float(np.nanmax(np.minimum(*fractions), initial=0.0))
        return Detection(
            "lessons",
            self.rounds,
            dict(zip(self.clients, scores.tolist(), strict=True)),
            dict.fromkeys(self.unlearners, Suspicion(REASON, CONFIDENCE)),
            strength if self.unlearners else min(strength, 0.99),
        )


def lessons(history: History, flat: FlatModel, x: Images, y: Labels, *, classes: int) -> Lessons | None:
    """Return the lessons of each client, from probe examples ``x`` with labels ``y``.

    Returns None if a class has no probe example. Raises HistoryError if no round keeps its updates.
    """
    of_class = [np.flatnonzero(np.asarray(y) == k)[:EACH] for k in range(classes)]
    if not all(len(rows) for rows in of_class):
        return None
    clients, place = history.clients, {client: i for i, client in enumerate(history.clients)}
    balance, net, gain = list[Matrix64](), list[Matrix64](), list[Matrix64]()
    for _, model, updates in kept_rounds(history, most=ROUNDS):
        lengths = np.linalg.norm(updates.vectors.astype(np.float64), axis=1)
        gradients = (flat.gradient(model, x[rows], y[rows]) for rows in of_class)
        effects = np.stack([products(updates.vectors, -_unit(g)) for g in gradients])
        effects /= np.maximum(lengths, 1e-300)
        columns = [place[client] for client in updates.clients]
        most, least = effects.max(axis=0), effects.min(axis=0)
        strongest = np.maximum(np.maximum(most, -least), 1e-300)
        total = most + least
        for table, values in ((balance, total / strongest), (net, total), (gain, most)):
            table.append(np.full(len(clients), np.nan))
            table[-1][columns] = np.where(lengths > 0, values, np.nan)
    return Lessons(clients, len(gain), *(_lower_half(np.array(rows)) for rows in (balance, net, gain)))


def spare(
    detection: Detection, teachers: Collection[ClientId], confirmed: Collection[ClientId] = ()
) -> Detection:
    """Return the ledger's detection without the suspects that teach; they are in its ``apart`` instead.

    The detection stays as it is if its strength is CLEAR or more, or if another detector ``confirmed`` one
    of its suspects. A suspect that sends copies is never spared.
    """
    suspicions = detection.suspicions
    spared = {c: s.reason for c, s in suspicions.items() if c in teachers and s.reason != COPIES}
    if not spared or detection.strength >= CLEAR or {*confirmed} & {*suspicions}:
        return detection
    left = {client: suspicion for client, suspicion in suspicions.items() if client not in spared}
    note = (
        f"Stand apart, but are not named: {join_ids(spared)} ({next(iter(spared.values()))}). They teach the "
        "model the classes that the server knows, as honest clients do."
    )
    return replace(
        detection,
        suspicions=left,
        strength=detection.strength if left else min(detection.strength, 0.99),
        notes=(note, *detection.notes),
        apart={**detection.apart, **spared},
    )


def _unit(vector: Matrix64) -> Matrix64:
    return vector / max(float(np.linalg.norm(vector)), 1e-300)


def _lower_half(rows: Matrix64) -> Matrix64:
    """Return the lower of each column's means over the two halves; NaN if both halves have too few rows."""
    means = []
    for half in np.array_split(rows, 2):
        present = np.isfinite(half)
        counts = present.sum(axis=0)
        sums = np.where(present, half, 0.0).sum(axis=0)
        means.append(np.where(counts >= OFTEN, sums / np.maximum(counts, 1), np.inf))
    lower = np.minimum(*means)
    return np.where(np.isfinite(lower), lower, np.nan)
