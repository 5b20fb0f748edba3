"""Where a history stands: all that its next entry depends on, and nothing that grows with the rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

from fedcrab.errors import DamagedError
from fedcrab.history.chain import link
from fedcrab.history.records import Record, RoundRecord, Settings, WindowRecord, describe


@dataclass(frozen=True, slots=True)
class State:
    """After the last entry. The next entry must be one that the charter's rules call for."""

    charter: Settings
    head: str  # the hash of the last entry
    reference_loss: float  # that the open window is measured against
    entries: int = 1
    rounds: int = 0
    windows: int = 0
    chosen: int = 0  # rounds chosen in closed windows
    pending: tuple[RoundRecord, ...] = ()  # the rounds of the open window
    last: RoundRecord | None = None
    last_kept: RoundRecord | None = None
    ended_early: bool = False  # the last window was closed by the end of training, not by its rounds
    closed: bool = False

    @classmethod
    def first(cls, charter: Settings, digest: str) -> State:
        """Of a history without rounds."""
        return cls(charter, digest, charter.initial_loss)

    def extended(self, entry: Record) -> State:
        """After one more entry, which is hashed here, once."""
        return self.after(entry, link(self.head, entry))

    def after(self, entry: Record, digest: str) -> State:
        """After one more entry of this hash; DamagedError where the rules do not call for it."""
        self._check(entry)
        longer = replace(self, head=digest, entries=self.entries + 1)
        if isinstance(entry, RoundRecord):
            return replace(longer, rounds=self.rounds + 1, pending=(*self.pending, entry), last=entry)
        if not isinstance(entry, WindowRecord):
            return replace(longer, closed=True)
        kept = self.kept_by(entry)
        return replace(
            longer,
            windows=self.windows + 1,
            chosen=self.chosen + len(entry.chosen),
            pending=(),
            last_kept=kept[-1] if kept else self.last_kept,
            reference_loss=entry.reference,
            ended_early=not self.window_is_full(),
        )

    def kept_by(self, window: WindowRecord) -> list[RoundRecord]:
        """The pending rounds that a decision keeps: those chosen, and round 0 besides."""
        return [r for r in self.pending if r.index in window.chosen or r.index == 0]

    def _check(self, entry: Record) -> None:
        """The entry is what the rules of the charter give, not only what somebody wrote."""
        if self.closed or isinstance(entry, Settings):
            raise DamagedError(f"{describe(entry)} stands where nothing can follow")
        if isinstance(entry, RoundRecord):
            self._check_round(entry)
        elif isinstance(entry, WindowRecord):
            if not self.pending or entry.facts() != self.decide().facts():
                raise DamagedError(f"{describe(entry)}: the decision does not follow from its rounds")
        elif entry.rounds != self.rounds or self.pending:
            raise DamagedError(f"closing after {entry.rounds} rounds: rounds are missing or undecided")

    def _check_round(self, entry: RoundRecord) -> None:
        if entry.index != self.rounds:
            raise DamagedError(f"round {entry.index} stands where round {self.rounds} belongs")
        if self.window_is_full() or self.ended_early:
            raise DamagedError(f"round {entry.index}: the window before it was not closed by the rules")
        if entry.began and entry.ended and entry.ended < entry.began:
            raise DamagedError(f"round {entry.index} ended before it began")
        if (entry.updates is not None) != self.charter.selection.keeps_updates(entry.index):
            raise DamagedError(f"round {entry.index}: its updates are not kept as the selection says")
        if entry.references != self.references:
            raise DamagedError(f"round {entry.index}: it is compared with rounds that the rules do not give")

    def compared(self) -> list[RoundRecord]:
        """The rounds one of which will be the kept round before the next round, with their means."""
        return [*((self.last_kept,) if self.last_kept else ()), *self.pending]

    @property
    def references(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(entry.index for entry in self.compared())

    @property
    def model(self) -> str:
        """The hash of the model after the last round."""
        return self.last.after if self.last else self.charter.initial_model

    def window_is_full(self) -> bool:
        """Whether the open window ends with its last round."""
        closes = self.charter.selection.closes
        return bool(self.pending) and closes(self.reference_loss, self.pending[-1].loss, len(self.pending))

    def decide(self) -> WindowRecord:
        """The decision over the open window, were it to end now."""
        first, last = self.pending[0], self.pending[-1]
        changes = {r.index: r.divergence for r in self.pending}
        chosen = self.charter.selection.choose(changes, seen=first.index, chosen=self.chosen)
        reference = last.loss if isfinite(last.loss) else self.reference_loss
        return WindowRecord(self.windows, first.index, last.index, chosen, reference)

    def files(self) -> set[str]:
        """The snapshots that must be there for what is still open: those of kept rounds come besides."""
        pending = {name for r in self.pending for name in (r.start, r.updates, r.state_before) if name}
        pending |= {self.last.state_after} if self.last and self.last.state_after else set()
        means = set() if self.closed else {entry.mean for entry in self.compared()}
        return {self.charter.initial_model, self.model} | pending | means
