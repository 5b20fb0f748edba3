"""The state of a history: all that its next entry depends on, and nothing that grows with the rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

from fedcrab.errors import DamagedError
from fedcrab.history.chain import link
from fedcrab.history.records import Record, RoundRecord, Settings, WindowRecord, describe


@dataclass(frozen=True, slots=True)
class State:
    """The state after the last entry. The next entry must follow the rules of the charter."""

    charter: Settings
    head: str  # the hash of the last entry
    reference_loss: float  # the loss that the open window is compared with
    entries: int = 1
    rounds: int = 0
    windows: int = 0
    chosen: int = 0  # rounds chosen in closed windows
    pending: tuple[RoundRecord, ...] = ()  # the rounds of the open window
    last: RoundRecord | None = None
    last_kept: RoundRecord | None = None
    ended_early: bool = False  # the last window was closed by the end of the training, not by its rounds
    closed: bool = False

    @classmethod
    def first(cls, charter: Settings, digest: str) -> State:
        """Return the state of a history without rounds."""
        return cls(charter, digest, charter.initial_loss)

    def extended(self, entry: Record) -> State:
        """Return the state after one more entry, which is hashed here."""
        return self.after(entry, link(self.head, entry))

    def after(self, entry: Record, digest: str) -> State:
        """Return the state after one more entry with this hash; raise ``DamagedError`` if it is invalid."""
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
        """Return the pending rounds that a decision keeps: those chosen, and round 0."""
        return [r for r in self.pending if r.index in window.chosen or r.index == 0]

    def _check(self, entry: Record) -> None:
        """Raise ``DamagedError`` unless the entry follows the rules of the charter."""
        if self.closed or isinstance(entry, Settings):
            raise DamagedError(f"{describe(entry)} is after the end of the history")
        if isinstance(entry, RoundRecord):
            self._check_round(entry)
        elif isinstance(entry, WindowRecord):
            if not self.pending or entry.facts() != self.decide().facts():
                raise DamagedError(f"{describe(entry)}: the decision does not follow from its rounds")
        elif entry.rounds != self.rounds or self.pending:
            raise DamagedError(f"closed after {entry.rounds} rounds: rounds are missing or undecided")

    def _check_round(self, entry: RoundRecord) -> None:
        if entry.index != self.rounds:
            raise DamagedError(f"expected round {self.rounds}, found round {entry.index}")
        if self.window_is_full() or self.ended_early:
            raise DamagedError(f"round {entry.index}: the rules do not close the window before it")
        if entry.began and entry.ended and entry.ended < entry.began:
            raise DamagedError(f"round {entry.index} ended before it began")
        if (entry.updates is not None) != self.charter.selection.keeps_updates(entry.index):
            raise DamagedError(f"round {entry.index}: its updates are not stored as the selection requires")
        if entry.references != self.references:
            raise DamagedError(f"round {entry.index}: the rules do not compare it with these rounds")

    def compared(self) -> list[RoundRecord]:
        """Return the rounds that the next round may be compared with."""
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
        """Return whether the open window ends with its last round."""
        closes = self.charter.selection.closes
        return bool(self.pending) and closes(self.reference_loss, self.pending[-1].loss, len(self.pending))

    def decide(self) -> WindowRecord:
        """Return the decision about the open window if it ended now."""
        first, last = self.pending[0], self.pending[-1]
        changes = {r.index: r.divergence for r in self.pending}
        chosen = self.charter.selection.choose(changes, seen=first.index, chosen=self.chosen)
        reference = last.loss if isfinite(last.loss) else self.reference_loss
        return WindowRecord(self.windows, first.index, last.index, chosen, reference)

    def files(self) -> set[str]:
        """Return the snapshots that must exist for what is still open, besides those of kept rounds."""
        pending = {name for r in self.pending for name in (r.start, r.updates, r.state_before) if name}
        pending |= {self.last.state_after} if self.last and self.last.state_after else set()
        means = set() if self.closed else {entry.mean for entry in self.compared()}
        return {self.charter.initial_model, self.model} | pending | means
