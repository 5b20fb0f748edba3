"""The entries of a ledger, and what follows from them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, overload

from fedcrab.errors import DamagedError
from fedcrab.history.chain import GENESIS, link
from fedcrab.history.ledger_reader import read_rounds
from fedcrab.history.records import ClosingRecord, Record, RoundRecord, Settings, WindowRecord, describe
from fedcrab.history.selection import Compact
from fedcrab.history.state import State
from fedcrab.history.stored_participants import StoredParticipants
from fedcrab.types import ClientId


@dataclass(frozen=True, slots=True)
class NeededFile:
    """What a snapshot is needed for."""

    kind: Literal["model", "mean", "updates", "packed", "state"]
    round: int

    def __str__(self) -> str:
        """Return a description for messages."""
        if self.kind == "model":
            return f"the model before round {self.round}"
        if self.kind == "state":
            return f"the server's state before round {self.round}"
        return f"the {'mean update' if self.kind == 'mean' else 'updates'} of round {self.round}"


class LedgerState:
    """The entries so far. Each new entry must follow from those before it.

    A writer passes ``stored``, the path of the ledger, and keeps no rounds in memory: they are read on
    demand.
    """

    def __init__(self, charter: Settings, digest: str, stored: Path | None = None) -> None:
        self.now = State.first(charter, digest)
        self.rounds: Sequence[RoundRecord] = [] if stored is None else StoredRounds(stored, self)
        self.windows: list[WindowRecord] = []
        self._kept: list[int] = []
        self._settled: set[str] = set()  # the snapshots of kept rounds; they are never deleted
        self._clients: tuple[str, tuple[ClientId, ...]] | None = None  # at this head

    def add(self, entry: Record, digest: str) -> None:
        """Add the next entry."""
        self.take(entry, self.now.after(entry, digest))

    def take(self, entry: Record, now: State) -> None:
        """Add an entry; ``now`` is the state of the history after it."""
        if isinstance(entry, RoundRecord):
            if self.packed:
                self._settled |= {name for name in (entry.updates,) if name}
                self._settled |= {entry.start} if self.now.last and entry.start != self.now.model else set()
            if isinstance(self.rounds, list):
                self.rounds.append(entry)
        elif isinstance(entry, WindowRecord):
            kept = self.now.kept_by(entry)
            self.windows.append(entry)
            self._kept += [r.index for r in kept]
            self._settled |= {name for r in kept for name in (r.start, r.updates, r.state_before) if name}
        self.now = now

    def needs(self, snapshot: str) -> bool:
        """Return whether the snapshot with this hash must exist."""
        return snapshot in self._settled or snapshot in self.now.files()

    def settled(self) -> frozenset[str]:
        """Return the snapshots that no later decision can drop and no later round is compared with."""
        return frozenset(self._settled - self.now.files())

    def files(self) -> set[str]:
        """Return the snapshots that must exist: the keys of :meth:`needed`, without reading the rounds."""
        return self._settled | self.now.files()

    def place(self, round: int) -> int:
        """Return the position of a round's entry: the charter, rounds and windows before it are counted."""
        return 1 + round + bisect_left(self.windows, round, key=lambda window: window.last)

    @property
    def charter(self) -> Settings:
        """What was fixed at creation."""
        return self.now.charter

    @property
    def head(self) -> str:
        """The hash of the last entry."""
        return self.now.head

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self.now.entries

    @property
    def closed(self) -> bool:
        """Whether the training has ended."""
        return self.now.closed

    @property
    def pending(self) -> tuple[RoundRecord, ...]:
        """The rounds of the open window."""
        return self.now.pending

    @property
    def kept(self) -> tuple[int, ...]:
        """The rounds whose models are kept; pending rounds are not included."""
        return tuple(self._kept)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Every client that took part in any round."""
        if self._clients is None or self._clients[0] != self.head:
            found = {client for entry in self.rounds for client in entry.clients}
            self._clients = self.head, tuple(sorted(found))
        return self._clients[1]

    @property
    def references(self) -> tuple[int, ...]:
        """The rounds that the next round may be compared with: one of them will be the last kept round."""
        return self.now.references

    def state(self, round: int) -> str:
        """``kept``, ``dropped`` or ``pending``."""
        at = bisect_left(self._kept, round)
        if at < len(self._kept) and self._kept[at] == round:
            return "kept"
        return "pending" if not self.windows or round > self.windows[-1].last else "dropped"

    def window_of(self, round: int) -> int | None:
        """Return the window of a round; None while the window is open."""
        at = bisect_left(self.windows, round, key=lambda window: window.last)
        return at if at < len(self.windows) else None

    def needed(self) -> dict[str, NeededFile]:
        """Return the snapshots that must exist, by hash, with what each is needed for."""
        files = {self.charter.initial_model: NeededFile("model", 0)}
        if self.now.last:
            files[self.now.model] = NeededFile("model", self.now.rounds)
            if self.now.last.state_after:
                files[self.now.last.state_after] = NeededFile("state", self.now.rounds)
        for entry in self._undecided_or_kept():
            files[entry.start] = NeededFile("model", entry.index)
            if entry.updates and not self.packed:
                files[entry.updates] = NeededFile("updates", entry.index)
            if entry.state_before:
                files[entry.state_before] = NeededFile("state", entry.index)
        for entry in self.rounds if self.packed else ():
            if entry.updates:
                files[entry.updates] = NeededFile("packed", entry.index)
            if self._starts_elsewhere(entry.index):
                files[entry.start] = NeededFile("model", entry.index)
        for entry in () if self.closed else self.now.compared():
            files[entry.mean] = NeededFile("mean", entry.index)
        return files

    @property
    def packed(self) -> bool:
        """Whether every round's updates and its step are stored in a few bits."""
        return isinstance(self.charter.selection, Compact)

    def has_updates(self, round: int) -> bool:
        """Return whether the update vectors of a round are stored, exactly or in a few bits."""
        return self.rounds[round].updates is not None and (self.packed or self.state(round) != "dropped")

    def has_exact_model(self, round: int) -> bool:
        """Return whether the model before a round is stored exactly."""
        return self.state(round) != "dropped" or (self.packed and self._starts_elsewhere(round))

    def _starts_elsewhere(self, round: int) -> bool:
        """Return whether the model was replaced before a round, so that it does not follow from the last."""
        return round > 0 and self.rounds[round].start != self.rounds[round - 1].after

    def _undecided_or_kept(self) -> Iterable[RoundRecord]:
        return [*(self.rounds[t] for t in self._kept), *self.pending]


class StoredRounds(Sequence[RoundRecord]):
    """The rounds of a ledger that is being written, read on demand; only pending ones are in memory."""

    BATCH = 16  # rounds read together, so that iterating needs little memory

    def __init__(self, path: Path, contents: LedgerState) -> None:
        self._path, self._contents = path, contents

    def __len__(self) -> int:
        return self._contents.now.rounds

    @overload
    def __getitem__(self, at: int) -> RoundRecord: ...
    @overload
    def __getitem__(self, at: slice) -> list[RoundRecord]: ...
    def __getitem__(self, at: int | slice) -> RoundRecord | list[RoundRecord]:
        """Return one round, or a list for a slice."""
        wanted = range(len(self))[at]
        return self._read([wanted])[0] if isinstance(wanted, int) else self._read(wanted)

    def __iter__(self) -> Iterator[RoundRecord]:
        for start in range(0, len(self), self.BATCH):
            yield from self[start : start + self.BATCH]

    def _read(self, wanted: Sequence[int]) -> list[RoundRecord]:
        held = {entry.index: entry for entry in (self._contents.now.last, *self._contents.pending) if entry}
        places = [self._contents.place(t) for t in wanted if t not in held]
        found = iter(read_rounds(self._path, places, self._contents.charter) if places else ())
        return [held[t] if t in held else next(found) for t in wanted]


def audit(
    placed: Iterable[tuple[int, Record | None, str]], *, stored: Path | None = None, thorough: bool = True
) -> tuple[LedgerState | None, list[str]]:
    """Return the state of a ledger, and everything in it that is invalid.

    Without ``thorough``, the clients of a round are checked when they are first used, together with the
    round's link in the chain.
    """
    contents: LedgerState | None = None
    problems: list[str] = []
    previous = GENESIS
    for expected, (place, entry, digest) in enumerate(placed):
        if place != expected:
            problems.append(f"expected entry {expected}, found entry {place}: entries are missing")
            break
        if entry is None:
            problems.append(digest)
            break
        try:
            if isinstance(entry, RoundRecord):
                charter = contents.charter if contents is not None else None
                problems += _round_problems(entry, previous, digest, charter, thorough)
            elif link(previous, entry) != digest:
                problems.append(f"{describe(entry)} (entry {place}) does not match its hash")
            previous = digest
            contents = _take(contents, entry, digest, stored)
        except DamagedError as error:
            problems.append(str(error))
            break
    if contents is None and not problems:
        problems.append("the ledger has no entries")
    return contents, problems


def _round_problems(
    entry: RoundRecord, previous: str, digest: str, charter: Settings | None, thorough: bool
) -> list[str]:
    """Tell a round's clients what they must match; if ``thorough``, return what is wrong with them."""
    if charter is None:  # a round in place of the charter, which is reported elsewhere
        return []
    if isinstance(entry.present, StoredParticipants):
        entry.present.expect(entry, previous, digest, charter)
    if not thorough:
        return []
    try:
        _ = entry.coordinates.numbers
    except DamagedError as error:
        return [str(error)]
    return []


def _take(contents: LedgerState | None, entry: Record, digest: str, stored: Path | None) -> LedgerState:
    if contents is None:
        if not isinstance(entry, Settings):
            raise DamagedError(f"expected the charter, found {describe(entry)}")
        return LedgerState(entry, digest, stored)
    contents.add(entry, digest)
    return contents


def untimed_head(contents: LedgerState) -> str:
    """Return the head as if no round had times: equal for two trainings with the same bits."""
    digest = link(GENESIS, contents.charter)
    windows = iter(contents.windows)
    window = next(windows, None)
    for entry in contents.rounds:
        digest = link(digest, replace(entry, began=None, ended=None))
        if window is not None and window.last == entry.index:
            digest, window = link(digest, window), next(windows, None)
    return link(digest, ClosingRecord(len(contents.rounds))) if contents.closed else digest
