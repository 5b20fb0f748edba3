"""The clients of a page, and the Gram matrix of each round for them.

The page contains every client if that fits, and otherwise those that matter most. The other clients still
count exactly: the page contains the mean of those that are marked when it opens (they stay marked), and the
mean of the rest, which count as honest.

If every client is on the page, the numbers are those of the ledger, so that the page's sums are those of
``plan``, bit for bit. Otherwise the points of a round are the clients on the page, the mean of the others,
the mean of the selected others, the same two means for marked clients that are not on the page, and the
reference. Their coordinates are the triangular factor of these points. So the norms of all combinations are
the same, up to the rounding of one orthogonal transformation.
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
LEAST_CLIENTS = 20  # on the page, however many rounds there are
MOST_NAMED = 250  # named clients on the page, if there is little room
MOST_REJECTED = 500  # clients on the page that were rejected from every round
EXTRA_POINTS = 5  # four means, and the reference


@dataclass(frozen=True, slots=True)
class PageClients:
    """The clients of a page, sorted by id, and how many are not on it."""

    clients: tuple[ClientId, ...]
    order: tuple[int, ...]  # indices of the clients in natural order: c2 before c10
    others: int  # took part, not on the page, count as honest
    together: tuple[ClientId, ...]  # took part, not on the page, count as malicious, as one group
    turned_away: int  # rejected from every round, not on the page

    def places(self) -> dict[ClientId, int]:
        """Return the index of each client."""
        return {client: place for place, client in enumerate(self.clients)}


def clients_of_page(
    history: History, first: Iterable[ClientId] = (), marked: Iterable[ClientId] = ()
) -> PageClients:
    """Return as many clients as fit on the page: those in ``marked``, then ``first``, then by influence."""
    participants, bad = set(history.clients), list(marked)
    wanted = [*bad, *first]
    room = clients_that_fit([len(entry.clients) for entry in history.rounds], len(participants))
    shown = participants
    if room < len(participants):
        named = [client for client in wanted if client in participants]
        ranked = list(dict.fromkeys([*named, *by_influence(history)]))
        shown = set(ranked[: max(room, min(len(set(named)), MOST_NAMED))])
    rejected = {r.client for entry in history.rounds for r in entry.rejected} - participants
    wanted_rejected = rejected & set(wanted)
    other_rejected = sorted(rejected - wanted_rejected, key=natural)
    clients = tuple(sorted({*shown, *wanted_rejected, *other_rejected[:MOST_REJECTED]}))
    order = sorted(range(len(clients)), key=lambda place: natural(clients[place]))
    turned_away = len(other_rejected[MOST_REJECTED:])
    together = tuple(sorted((participants - shown) & set(bad), key=natural))
    others = len(participants) - len(shown) - len(together)
    return PageClients(clients, tuple(order), others, together, turned_away)


def clients_that_fit(participants: Sequence[int], clients: int) -> int:
    """Return how many clients fit on a page, for this number of participants per round."""
    if _numbers(participants) <= MOST_NUMBERS:
        return clients
    room = LEAST_CLIENTS
    while _numbers([min(n, room + 1) + EXTRA_POINTS for n in participants]) <= MOST_NUMBERS:
        room += 1
    return min(room, clients)


def _numbers(points: Iterable[int]) -> int:
    return sum(n * (n + 1) // 2 for n in points)


def by_influence(history: History) -> list[ClientId]:
    """Return the participants by how far each moved the mean, Σ p·‖u - mean‖ over rounds, largest first."""
    influence = Counter(dict.fromkeys(history.clients, 0.0))
    for entry in history.rounds:
        if entry.clients:
            influence.update(dict(zip(entry.clients, _influences(entry).tolist(), strict=True)))
    return sorted(influence, key=lambda client: (-influence[client], natural(client)))


def _influences(entry: RoundRecord) -> Matrix64:
    rows, shares = rows_of(entry, range(len(entry.clients))), entry.examples / entry.examples.sum()
    return np.asarray(shares * np.linalg.norm(rows - shares @ rows, axis=1))


def rows_of(entry: RoundRecord, points: Iterable[int]) -> Matrix64:
    """Return the coordinates of some points of a round, one row per point."""
    packed_rows = [entry.coordinates.row(point) for point in points]
    rows = np.zeros((len(packed_rows), entry.coordinates.width))
    for row, numbers in zip(rows, packed_rows, strict=True):
        row[: len(numbers)] = numbers
    return rows


@dataclass(frozen=True, slots=True)
class GroupedClients:
    """Clients that are not on the page, as one group."""

    count: int
    examples: float
    row: Matrix64 | None  # the coordinates of their mean


@dataclass(frozen=True, slots=True)
class PageGram:
    """The points of one round."""

    members: tuple[int, ...]  # indices in the round of the clients on the page
    others: GroupedClients
    selected_others: GroupedClients  # empty unless the round is kept
    marked: GroupedClients
    selected_marked: GroupedClients
    triangle: Matrix64  # the rows of the members, then of the four means; packed: row i has i + 1 numbers
    reference: Matrix64  # in a kept round, of the kept round before; otherwise empty
    width: int


def points_of(history: History, clients: PageClients) -> list[PageGram]:
    """Return the points of every round."""
    kept, shown, marked = set(history.kept), set(clients.clients), set(clients.together)
    before = dict(zip(history.kept[1:], history.kept, strict=False))
    return [
        _points(entry, _groups(entry, shown, marked), entry.index in kept, before.get(entry.index))
        for entry in history.rounds
    ]


def _groups(
    entry: RoundRecord, shown: Set[ClientId], marked: Set[ClientId]
) -> tuple[list[int], list[int], list[int]]:
    """Return indices in the round: of clients on the page, of marked clients not on it, of the others."""
    places = list(enumerate(entry.clients))
    members = [place for place, client in places if client in shown]
    together = [place for place, client in places if client in marked]
    return members, together, sorted({*range(len(places))} - {*members, *together})


def _points(
    entry: RoundRecord, groups: tuple[list[int], list[int], list[int]], kept: bool, before: int | None
) -> PageGram:
    members, together, others = groups

    def selected(places: Sequence[int]) -> GroupedClients:
        return _grouped(entry, [place for place in places if entry.selected[place]] if kept else [])

    means = (_grouped(entry, others), selected(others), _grouped(entry, together), selected(together))
    reference = np.zeros(0)
    if before is not None:
        reference = entry.coordinates.row(len(entry.clients) + entry.references.index(before))
    if others or together or entry.coordinates.sketched:
        return _factored(entry, members, means, reference)
    triangle = entry.coordinates.numbers[: len(members) * (len(members) + 1) // 2]
    return PageGram(tuple(members), *means, triangle, reference, entry.coordinates.width)


def _grouped(entry: RoundRecord, places: Sequence[int]) -> GroupedClients:
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
    lower = _triangular(np.vstack([rows, *means, last]))
    count = len(members) + len(means)
    triangle = lower[:count, :count][np.tril_indices(count)]
    return PageGram(tuple(members), *groups, triangle, lower[count:].reshape(-1), len(lower))


def _triangular(rows: Matrix64) -> Matrix64:
    """Return a lower triangular matrix with the same inner products between its rows."""
    lower = np.zeros((len(rows), len(rows)))
    factor = np.asarray(np.linalg.qr(rows.T, mode="r")).T
    lower[:, : factor.shape[1]] = factor
    return lower
