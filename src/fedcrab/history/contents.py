"""What a ledger says, entry by entry, and what follows from it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from fedcrab.errors import DamagedError
from fedcrab.history.entries import (
    GENESIS,
    Charter,
    Entry,
    RoundEntry,
    WindowEntry,
    describe,
    link,
)


@dataclass(frozen=True, slots=True)
class Need:
    """What a snapshot is."""

    kind: Literal["model", "mean", "updates"]
    round: int

    def __str__(self) -> str:
        """For people."""
        if self.kind == "model":
            return f"the model before round {self.round}"
        return f"the {'mean update' if self.kind == 'mean' else 'updates'} of round {self.round}"


class Contents:
    """The entries so far. Every entry added must be the one that the entries before it call for."""

    def __init__(self, charter: Charter, digest: str) -> None:
        self.charter = charter
        self.head = digest  # the hash of the last entry
        self.entries = 1
        self.rounds: list[RoundEntry] = []
        self.windows: list[WindowEntry] = []
        self.closed = False
        self.chosen = 0  # rounds chosen in closed windows
        self._kept: list[int] = []
        self._ended_early = False  # the last window was closed by the end of training, not by its rounds

    def extended(self, entry: Entry) -> Contents:
        """These contents and one more entry; these themselves stay as they are."""
        longer = copy(self)
        longer.rounds, longer.windows, longer._kept = [*self.rounds], [*self.windows], [*self._kept]
        longer.add(entry, link(self.head, entry))
        return longer

    def add(self, entry: Entry, digest: str) -> None:
        """Take in the next entry."""
        self._check(entry)
        if isinstance(entry, RoundEntry):
            self.rounds.append(entry)
        elif isinstance(entry, WindowEntry):
            self._ended_early = not self.window_is_full()
            self.windows.append(entry)
            self.chosen += len(entry.chosen)
            self._kept += sorted({*entry.chosen, *({0} if entry.first == 0 else ())})
        else:
            self.closed = True
        self.head, self.entries = digest, self.entries + 1

    def _check(self, entry: Entry) -> None:
        """The entry is what the rules of the charter give, not only what somebody wrote."""
        if self.closed or isinstance(entry, Charter):
            raise DamagedError(f"{describe(entry)} stands where nothing can follow")
        if isinstance(entry, RoundEntry):
            self._check_round(entry)
        elif isinstance(entry, WindowEntry):
            if not self.pending or entry.facts() != self.decide().facts():
                raise DamagedError(f"{describe(entry)}: the decision does not follow from its rounds")
        elif entry.rounds != len(self.rounds) or self.pending:
            raise DamagedError(f"closing after {entry.rounds} rounds: rounds are missing or undecided")

    def _check_round(self, entry: RoundEntry) -> None:
        if entry.index != len(self.rounds):
            raise DamagedError(f"round {entry.index} stands where round {len(self.rounds)} belongs")
        if self.window_is_full() or self._ended_early:
            raise DamagedError(f"round {entry.index}: the window before it was not closed by the rules")
        selected = self.charter.selection.select(entry.cosines.tolist())
        sketched = len(entry.clients) > self.charter.gram_limit
        width = self.charter.sketch_size if sketched else entry.coordinates.points
        if (
            selected != tuple(entry.selected.tolist())
            or entry.references != self.references
            or (entry.coordinates.sketched, entry.coordinates.width) != (sketched, width)
        ):
            raise DamagedError(f"round {entry.index}: its selection does not follow from its numbers")

    @property
    def pending(self) -> list[RoundEntry]:
        """The rounds of the open window."""
        return self.rounds[self.windows[-1].last + 1 if self.windows else 0 :]

    @property
    def kept(self) -> tuple[int, ...]:
        """The rounds whose models are kept, decided ones only."""
        return tuple(self._kept)

    @property
    def references(self) -> tuple[int, ...]:
        """The rounds one of which will be the kept round before the next round."""
        return (*self._kept[-1:], *(r.index for r in self.pending))

    @property
    def reference_loss(self) -> float:
        """The loss that the open window is measured against."""
        return self.windows[-1].reference if self.windows else self.charter.initial_loss

    def window_is_full(self) -> bool:
        """Whether the open window ends with its last round."""
        pending = self.pending
        closes = self.charter.selection.closes
        return bool(pending) and closes(self.reference_loss, pending[-1].loss, len(pending))

    def decide(self) -> WindowEntry:
        """The decision over the open window, were it to end now."""
        pending = self.pending
        first, last = pending[0], pending[-1]
        changes = {r.index: r.divergence for r in pending}
        chosen = self.charter.selection.choose(changes, seen=first.index, chosen=self.chosen)
        reference = last.loss if isfinite(last.loss) else self.reference_loss
        return WindowEntry(len(self.windows), first.index, last.index, chosen, reference)

    def state(self, round: int) -> str:
        """``kept``, ``dropped`` or ``pending``."""
        if round in self._kept:
            return "kept"
        return "pending" if not self.windows or round > self.windows[-1].last else "dropped"

    def window_of(self, round: int) -> int | None:
        """The window of a round; None while it is open."""
        at = bisect_left(self.windows, round, key=lambda window: window.last)
        return at if at < len(self.windows) else None

    def needed(self) -> dict[str, Need]:
        """The snapshots that must be there, by their hashes, each with what it is."""
        files = {self.charter.initial_model: Need("model", 0)}
        if self.rounds:
            files[self.rounds[-1].after] = Need("model", len(self.rounds))
        for entry in self._undecided_or_kept():
            files[entry.start] = Need("model", entry.index)
            if entry.updates:
                files[entry.updates] = Need("updates", entry.index)
        for index in () if self.closed else self.references:
            files[self.rounds[index].mean] = Need("mean", index)
        return files

    def _undecided_or_kept(self) -> Iterable[RoundEntry]:
        return [*(self.rounds[t] for t in self._kept), *self.pending]


def audit(placed: Iterable[tuple[int, Entry | None, str]]) -> tuple[Contents | None, list[str]]:
    """The contents of a ledger, and everything in it that is not as it must be."""
    contents: Contents | None = None
    problems: list[str] = []
    previous = GENESIS
    for expected, (place, entry, digest) in enumerate(placed):
        if place != expected:
            problems.append(f"entry {place} stands where entry {expected} belongs: entries are missing")
            break
        if entry is None:
            problems.append(digest)
            break
        if link(previous, entry) != digest:
            problems.append(f"{describe(entry)} (entry {place}) is not what its hash says")
        previous = digest
        try:
            contents = _take(contents, entry, digest)
        except DamagedError as error:
            problems.append(str(error))
            break
    if contents is None and not problems:
        problems.append("the ledger has no entries")
    return contents, problems


def _take(contents: Contents | None, entry: Entry, digest: str) -> Contents:
    if contents is None:
        if not isinstance(entry, Charter):
            raise DamagedError(f"{describe(entry)} stands where the charter belongs")
        return Contents(entry, digest)
    contents.add(entry, digest)
    return contents
