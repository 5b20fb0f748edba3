"""The geometry of each round as a page carries it.

If every client is on the page, these are the ledger's own numbers, so that the page's sums are those of
``plan``, bit for bit. Otherwise the points are the carried clients, the mean of the others, the mean of the
selected others, the same two means of the marked clients that are not carried, and the reference. Their
coordinates are the triangular factor of these alone: norms of all combinations are the same, up to the
rounding of one orthogonal transformation.

Whose geometry a page carries: everybody's where that fits, else those who matter most.

The clients who are not carried are counted exactly all the same: the mean of those who are marked from the
start, who stay marked, and the mean of the others, who count as honest, are carried in their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

import numpy as np

from fedcrab.history import History
from fedcrab.history.records import RoundRecord
from fedcrab.types import ClientId, natural
from fedcrab.vectors import Matrix64

MOST_NUMBERS = 750_000  # coordinates in a page: 6 MB, 8 MB in base64
LEAST_CLIENTS = 20  # are carried, however many rounds there are
MOST_NAMED = 250  # are carried, however little room there is
MOST_TURNED_AWAY = 500  # clients of whom nothing was ever let in
POINTS_BESIDE = (
    5  # the means of the others, of the selected ones, of the marked, of the selected, the reference
)


@dataclass(frozen=True, slots=True)
class PageClients:
    """The clients of a page, in the order of their ids, and how many are not there."""

    clients: tuple[ClientId, ...]
    order: tuple[int, ...]  # as people count them
    others: int  # who took part and are counted as honest
    together: tuple[ClientId, ...]  # who took part and are counted as malicious, all as one
    turned_away: int  # who never got into a round, and are not there either

    def places(self) -> dict[ClientId, int]:
        """Where each client stands."""
        return {client: place for place, client in enumerate(self.clients)}


def carried(history: History, first: Iterable[ClientId] = (), marked: Iterable[ClientId] = ()) -> PageClients:
    """As many clients as the page can answer for: those marked and those of ``first`` before all others."""
    taking_part, bad = set(history.clients), list(marked)
    wanted = [*bad, *first]
    room = clients_that_fit([len(entry.clients) for entry in history.rounds], len(taking_part))
    inside = taking_part
    if room < len(taking_part):
        named = [client for client in wanted if client in taking_part]
        ranked = list(dict.fromkeys([*named, *by_influence(history)]))
        inside = set(ranked[: max(room, min(len(set(named)), MOST_NAMED))])
    rejected = {r.client for entry in history.rounds for r in entry.rejected} - taking_part
    first_of_all = rejected & set(wanted)
    outside = sorted(rejected - first_of_all, key=natural)
    clients = tuple(sorted({*inside, *first_of_all, *outside[:MOST_TURNED_AWAY]}))
    order = sorted(range(len(clients)), key=lambda place: natural(clients[place]))
    left = len(outside[MOST_TURNED_AWAY:])
    together = tuple(sorted((taking_part - inside) & set(bad), key=natural))
    return PageClients(clients, tuple(order), len(taking_part) - len(inside) - len(together), together, left)


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


def _pulls(entry: RoundRecord) -> Matrix64:
    rows, shares = rows_of(entry, range(len(entry.clients))), entry.examples / entry.examples.sum()
    return np.asarray(shares * np.linalg.norm(rows - shares @ rows, axis=1))


def rows_of(entry: RoundRecord, points: Iterable[int]) -> Matrix64:
    """The coordinates of some points of a round, a row each."""
    given = [entry.coordinates.row(point) for point in points]
    rows = np.zeros((len(given), entry.coordinates.width))
    for row, numbers in zip(rows, given, strict=True):
        row[: len(numbers)] = numbers
    return rows


@dataclass(frozen=True, slots=True)
class GroupedClients:
    """Clients who are not carried, as one."""

    count: int
    examples: float
    row: Matrix64 | None  # of their mean


@dataclass(frozen=True, slots=True)
class PageGram:
    """One round's points."""

    members: tuple[int, ...]  # places in the round of those carried
    others: GroupedClients
    selected_others: GroupedClients  # in a kept round
    marked: GroupedClients  # who are not carried, and count as malicious
    selected_marked: GroupedClients
    triangle: Matrix64  # the rows of the members, then of the others' means: packed, row i has i + 1 numbers
    reference: Matrix64  # of the kept round before, in a kept round; empty where there is none
    width: int


def points_of(history: History, clients: PageClients) -> list[PageGram]:
    """The points of every round."""
    kept, inside, marked = set(history.kept), set(clients.clients), set(clients.together)
    before = dict(zip(history.kept[1:], history.kept, strict=False))
    return [
        _points(entry, _groups(entry, inside, marked), entry.index in kept, before.get(entry.index))
        for entry in history.rounds
    ]


def _groups(
    entry: RoundRecord, inside: Set[ClientId], marked: Set[ClientId]
) -> tuple[list[int], list[int], list[int]]:
    """The places of the carried clients of a round, of the marked who are not, and of the others."""
    places = list(enumerate(entry.clients))
    members = [place for place, client in places if client in inside]
    together = [place for place, client in places if client in marked]
    return members, together, sorted({*range(len(places))} - {*members, *together})


def _points(
    entry: RoundRecord, groups: tuple[list[int], list[int], list[int]], kept: bool, before: int | None
) -> PageGram:
    members, together, outside = groups

    def selected(places: Sequence[int]) -> GroupedClients:
        return _together(entry, [place for place in places if entry.selected[place]] if kept else [])

    means = (_together(entry, outside), selected(outside), _together(entry, together), selected(together))
    reference = np.zeros(0)
    if before is not None:
        reference = entry.coordinates.row(len(entry.clients) + entry.references.index(before))
    if outside or together or entry.coordinates.sketched:
        return _factored(entry, members, means, reference)
    triangle = entry.coordinates.numbers[: len(members) * (len(members) + 1) // 2]
    return PageGram(tuple(members), *means, triangle, reference, entry.coordinates.width)


def _together(entry: RoundRecord, places: Sequence[int]) -> GroupedClients:
    if not places:
        return GroupedClients(0, 0.0, None)
    weights = entry.examples[list(places)]
    return GroupedClients(
        len(places), float(weights.sum()), entry.coordinates.combine(places, weights / weights.sum())
    )


def _factored(
    entry: RoundRecord,
    members: Sequence[int],
    groups: tuple[GroupedClients, GroupedClients, GroupedClients, GroupedClients],
    reference: Matrix64,
) -> PageGram:
    means = [group.row for group in groups if group.row is not None]
    rows = rows_of(entry, members)
    last = np.zeros((1 if len(reference) else 0, rows.shape[1]))
    last[:, : len(reference)] = reference
    exact = _triangular(np.vstack([rows, *means, last]))
    count = len(members) + len(means)
    triangle = exact[:count, :count][np.tril_indices(count)]
    return PageGram(tuple(members), *groups, triangle, exact[count:].reshape(-1), len(exact))


def _triangular(rows: Matrix64) -> Matrix64:
    """The lower triangle with the same inner products between its rows."""
    exact = np.zeros((len(rows), len(rows)))
    factor = np.asarray(np.linalg.qr(rows.T, mode="r")).T
    exact[:, : factor.shape[1]] = factor
    return exact
