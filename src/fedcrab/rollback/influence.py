"""How far clients moved the model, from the geometry in the ledger, without any update vectors.

For a set S of clients, I(S) is how far S moved the model. In a counted round the malicious clients' part is
s = ‖I(all) - I(honest)‖; it is compared with φ = ‖I(honest)‖.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedcrab.history import History
from fedcrab.history.records import RoundRecord
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

NEVER_HONEST: Mapping[ClientId, int] = {}  # malicious from the first round on
TRACKS = 256  # clients in the cache
ROUNDING = 1e-13  # a sum that is this much smaller than its terms is only rounding


@dataclass(frozen=True, slots=True)
class Influence:
    """What the malicious clients did, one number per counted round."""

    rounds: Sequence[int]
    sensitivity: Matrix64  # s_t
    honest: Matrix64  # φ_t
    parts: Mapping[ClientId, float]  # each malicious client's part of Σ s_t; the parts add up to it


@dataclass(frozen=True, slots=True)
class ClientTrack:
    """One client in the counted rounds that it was part of."""

    at: NDArray[np.intp]  # which of the counted rounds
    shares: Matrix64  # its p_c there
    rows: Matrix64  # its update's coordinates there


@dataclass(frozen=True, slots=True)
class UnnamedMembers:
    """The members of one counted round that are not named malicious."""

    rows: Matrix64  # their updates' coordinates
    shares: Matrix64  # in their own mean
    everyone: Matrix64  # the mean of all members
    against: Matrix64  # the reference that movement is compared with


class CountedRounds:
    """The counted rounds, prepared once; the influence of any set of clients is then a few sums."""

    def __init__(
        self,
        counted: Sequence[tuple[RoundRecord, NDArray[np.intp], int | None]],
        asked: Collection[ClientId] = (),
    ) -> None:
        self._entries = [entry for entry, _, _ in counted]
        self._members = [members for _, members, _ in counted]
        self._shares = [_shares(entry.examples[members]) for entry, members, _ in counted]
        width = max((e.coordinates.width for e in self._entries), default=0)
        self._mean = np.zeros((len(counted), width))  # I(all), before the reference is subtracted
        self._against = np.zeros((len(counted), width))
        self._tracks: OrderedDict[ClientId, ClientTrack] = OrderedDict()
        found: dict[ClientId, list[tuple[int, float, Matrix64]]] = {client: [] for client in asked}
        for at, (entry, members, previous) in enumerate(counted):
            self._prepare(at, entry, members, previous)
            self._visit(at, found)  # while the coordinates of the round are in memory
        self._keep(found)

    def _prepare(self, at: int, entry: RoundRecord, members: NDArray[np.intp], previous: int | None) -> None:
        mean = entry.coordinates.combine(members.tolist(), self._shares[at])
        self._mean[at, : len(mean)] = mean
        if previous is not None:
            row = entry.coordinates.row(len(entry.clients) + entry.references.index(previous))
            self._against[at, : len(row)] = row

    def _visit(self, at: int, found: Mapping[ClientId, list[tuple[int, float, Matrix64]]]) -> None:
        """Add one counted round to the tracks of these clients."""
        entry, members = self._entries[at], self._members[at]
        ids, here = entry.clients, list[tuple[ClientId, int, float]]()
        for client in found:
            place = bisect_left(ids, client)
            if place < len(ids) and ids[place] == client:
                member = int(np.searchsorted(members, place))
                if member < len(members) and members[member] == place:
                    here.append((client, place, float(self._shares[at][member])))
        if here:
            rows = entry.coordinates.rows([place for _, place, _ in here])
            for (client, _, share), row in zip(here, rows, strict=True):
                found[client].append((at, share, row))

    def _keep(self, found: Mapping[ClientId, list[tuple[int, float, Matrix64]]]) -> None:
        for client, visits in found.items():
            rows = np.zeros((len(visits), self._mean.shape[1]))
            for full, (_, _, row) in zip(rows, visits, strict=True):
                full[: len(row)] = row
            at = np.array([at for at, _, _ in visits], np.intp)
            self._tracks[client] = ClientTrack(at, np.array([share for _, share, _ in visits]), rows)

    def _follow(self, clients: Collection[ClientId]) -> None:
        """Make sure that these clients' tracks are in memory: new ones take one pass over the rounds."""
        found: dict[ClientId, list[tuple[int, float, Matrix64]]]
        found = {client: [] for client in clients if client not in self._tracks}
        for at in range(len(self._entries)) if found else ():
            self._visit(at, found)
        self._keep(found)
        for client in clients:
            self._tracks.move_to_end(client)
        while len(self._tracks) > max(TRACKS, len(clients)):
            self._tracks.popitem(last=False)

    def influence(
        self, malicious: Collection[ClientId], since: Mapping[ClientId, int] = NEVER_HONEST
    ) -> Influence:
        """Return S and φ of every counted round, and each malicious client's part.

        A client is honest before its round in ``since``.
        """
        self._follow(sorted(malicious))
        tracks = {client: self._malicious(client, since.get(client, 0)) for client in sorted(malicious)}
        honest_mean, anyone = self._honest_mean(tracks)
        goal = np.where(anyone[:, None], honest_mean, self._against)
        moved = np.zeros_like(goal)  # I(all) - I(honest), as the sum of what each malicious client adds
        scale = np.linalg.norm(goal, axis=1)
        for track in tracks.values():
            moved[track.at] += track.shares[:, None] * (track.rows - goal[track.at])
            scale[track.at] += track.shares * np.linalg.norm(track.rows, axis=1)
        lengths = np.linalg.norm(moved, axis=1)
        lengths[lengths <= ROUNDING * scale] = 0.0
        direction = np.divide(moved, lengths[:, None], out=np.zeros_like(moved), where=lengths[:, None] > 0)
        parts = {client: _part(track, goal, direction) for client, track in tracks.items()}
        honest = np.where(anyone, np.linalg.norm(honest_mean - self._against, axis=1), 0.0)
        return Influence([e.index for e in self._entries], lengths, honest, parts)

    def _malicious(self, client: ClientId, since: int) -> ClientTrack:
        """Return a client's track in the counted rounds from ``since`` on."""
        track = self._tracks[client]
        if not since:
            return track
        late = np.array([self._entries[at].index >= since for at in track.at], bool)
        return ClientTrack(track.at[late], track.shares[late], track.rows[late])

    def remaining(
        self, malicious: Collection[ClientId], since: Mapping[ClientId, int] = NEVER_HONEST
    ) -> Iterator[UnnamedMembers]:
        """Yield the members of each round without these clients."""
        width = self._mean.shape[1]
        for at, (entry, members) in enumerate(zip(self._entries, self._members, strict=True)):
            bad = {client for client in malicious if entry.index >= since.get(client, 0)}
            places = [place for place in members.tolist() if entry.clients[place] not in bad]
            rows = np.zeros((len(places), width))
            rows[:, : entry.coordinates.width] = entry.coordinates.rows(places)
            yield UnnamedMembers(rows, _shares(entry.examples[places]), self._mean[at], self._against[at])

    def _honest_mean(self, tracks: Mapping[ClientId, ClientTrack]) -> tuple[Matrix64, NDArray[np.bool_]]:
        """Return the honest members' mean in each round, and whether there are honest members."""
        away, weight = np.zeros_like(self._mean), np.zeros(len(self._mean))
        bad = np.zeros(len(self._mean), np.intp)
        for track in tracks.values():
            away[track.at] += track.shares[:, None] * (track.rows - self._mean[track.at])
            weight[track.at] += track.shares
            bad[track.at] += 1
        left = np.array([len(members) for members in self._members], np.intp) - bad
        mean = self._mean - away / np.maximum(1 - weight, 0.5)[:, None]
        for at in np.flatnonzero((weight > 0.5) & (left > 0)):
            row = self._mean_without(int(at), tracks)
            mean[at] = 0
            mean[at, : len(row)] = row
        return mean, left > 0

    def _mean_without(self, at: int, tracks: Mapping[ClientId, ClientTrack]) -> Matrix64:
        """Return the honest mean from the honest rows, for rounds where malicious clients weigh most."""
        entry = self._entries[at]
        bad = {client for client, track in tracks.items() if at in track.at}
        honest = [place for place in self._members[at].tolist() if entry.clients[place] not in bad]
        return entry.coordinates.combine(honest, _shares(entry.examples[honest]))


def _shares(weights: Matrix64) -> Matrix64:
    return weights / weights.sum() if len(weights) else weights


def _part(track: ClientTrack, goal: Matrix64, direction: Matrix64) -> float:
    """Return a client's steps in the direction that each round moved: Σ ⟨p·(u - goal), direction⟩."""
    steps = np.einsum("tw,tw->t", track.rows - goal[track.at], direction[track.at])
    return float(track.shares @ steps)


_CACHE: WeakKeyDictionary[History, dict[str, tuple[str, CountedRounds]]] = WeakKeyDictionary()


def counted_rounds(history: History, kind: str, asked: Collection[ClientId] = ()) -> CountedRounds:
    """Return the rounds that this kind of evidence counts; prepared once while the history is open.

    The tracks of the clients in ``asked`` are read in the same pass over the ledger.
    """
    cached, head = _CACHE.setdefault(history, {}), history.contents.head
    if kind not in cached or cached[kind][0] != head:
        rounds = _stored(history) if kind == "stored" else _all(history)
        cached[kind] = head, CountedRounds(rounds, sorted(asked))
    return cached[kind][1]


def _all(history: History) -> list[tuple[RoundRecord, NDArray[np.intp], int | None]]:
    """Every round with all participants, compared with no movement."""
    return [(entry, np.arange(len(entry.clients)), None) for entry in history.rounds]


def _stored(history: History) -> list[tuple[RoundRecord, NDArray[np.intp], int | None]]:
    """The kept rounds with their selected clients, compared with the mean of the previous kept round."""
    entries = [history.rounds[t] for t in history.kept]
    before = [None, *history.kept]
    return [(e, np.flatnonzero(e.selected), b) for e, b in zip(entries, before, strict=False)]
