"""Whose geometry a page carries: everybody's where that fits, else those who matter most.

The clients who are not carried are counted as honest, exactly: their mean is carried in their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedcrab.history import History
from fedcrab.history.entries import RoundEntry
from fedcrab.types import ClientId, natural
from fedcrab.vectors import Matrix64

MOST_NUMBERS = 750_000  # coordinates in a page: 6 MB, 8 MB in base64
LEAST_CLIENTS = 20  # are carried, however many rounds there are
MOST_NAMED = 250  # are carried, however little room there is
MOST_TURNED_AWAY = 500  # clients of whom nothing was ever let in
POINTS_BESIDE = 3  # the mean of the others, that of the selected others, the reference


@dataclass(frozen=True, slots=True)
class Carried:
    """The clients of a page, in the order of their ids, and how many are not there."""

    clients: tuple[ClientId, ...]
    order: tuple[int, ...]  # as people count them
    others: int  # who took part and are counted as honest
    turned_away: int  # who never got into a round, and are not there either

    def places(self) -> dict[ClientId, int]:
        """Where each client stands."""
        return {client: place for place, client in enumerate(self.clients)}


def carried(history: History, first: Iterable[ClientId] = ()) -> Carried:
    """As many clients as the page can answer for; those of ``first`` before all others."""
    taking_part, wanted = set(history.clients), list(first)
    room = clients_that_fit([len(entry.clients) for entry in history.rounds], len(taking_part))
    inside = taking_part
    if room < len(taking_part):
        named = [client for client in wanted if client in taking_part]
        ranked = list(dict.fromkeys([*named, *by_influence(history)]))
        inside = set(ranked[: max(room, min(len(set(named)), MOST_NAMED))])
    rejected = {r.client for entry in history.rounds for r in entry.rejected} - taking_part
    outside = sorted(rejected, key=lambda client: (client not in wanted, natural(client)))
    clients = tuple(sorted({*inside, *outside[:MOST_TURNED_AWAY]}))
    order = sorted(range(len(clients)), key=lambda place: natural(clients[place]))
    left = len(outside[MOST_TURNED_AWAY:])
    return Carried(clients, tuple(order), len(taking_part) - len(inside), left)


def clients_that_fit(participants: Sequence[int], clients: int) -> int:
    """How many clients' coordinates fit into a page."""
    if _numbers(participants) <= MOST_NUMBERS:
        return clients
    room = LEAST_CLIENTS
    while _numbers([min(n, room + 1) + POINTS_BESIDE for n in participants]) <= MOST_NUMBERS:
        room += 1
    return min(room, clients)


def _numbers(points: Iterable[int]) -> int:
    return sum(n * (n + 1) // 2 for n in points)


def by_influence(history: History) -> list[ClientId]:
    """Those who took part, by how far each pulled the mean away over all rounds: Σ p·‖u - mean‖."""
    pulled = Counter(dict.fromkeys(history.clients, 0.0))
    for entry in history.rounds:
        if entry.clients:
            pulled.update(dict(zip(entry.clients, _pulls(entry).tolist(), strict=True)))
    return sorted(pulled, key=lambda client: (-pulled[client], natural(client)))


def _pulls(entry: RoundEntry) -> Matrix64:
    rows, shares = rows_of(entry, range(len(entry.clients))), entry.examples / entry.examples.sum()
    return np.asarray(shares * np.linalg.norm(rows - shares @ rows, axis=1))


def rows_of(entry: RoundEntry, points: Iterable[int]) -> Matrix64:
    """The coordinates of some points of a round, a row each."""
    given = [entry.coordinates.row(point) for point in points]
    rows = np.zeros((len(given), entry.coordinates.width))
    for row, numbers in zip(rows, given, strict=True):
        row[: len(numbers)] = numbers
    return rows
