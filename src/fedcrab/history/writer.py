"""The one writer of a history."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np

from fedcrab.admission import screen
from fedcrab.errors import DamagedError, HistoryError, RecordError
from fedcrab.history.contents import Contents
from fedcrab.history.disk import explained, hash_regular, sync_directory, write_again
from fedcrab.history.entries import Charter, Closing, Entry, RoundEntry
from fedcrab.history.ledger import Ledger
from fedcrab.history.lock import Lock
from fedcrab.history.measuring import Measuring, digests_of
from fedcrab.history.seal import LEDGER, SNAPSHOTS, Head
from fedcrab.history.snapshots import Snapshots
from fedcrab.history.verification import load
from fedcrab.types import Round, Updates
from fedcrab.vectors import is_finite


class Writer:
    """Adds rounds. A round is on the disk, whole, when :meth:`record` returns; else it is not there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.snapshots = Snapshots(directory / SNAPSHOTS)
        self._lock = Lock(directory)
        self._ledger: Ledger | None = None
        self._measuring = Measuring(self.snapshots)
        try:
            with explained(f"{directory}: its name is not safe on the disk"):
                sync_directory(directory.absolute().parent)
            if Head.read(directory).ledger is not None:
                self._refuse()  # sealed: not a byte of it is touched
            self._start()
            if self.contents.closed:
                with explained(f"{directory}: not sealed"):
                    self._seal()
                self._refuse()
        except BaseException:
            self.release()
            raise

    def _refuse(self) -> NoReturn:
        raise HistoryError(f"{self.directory}: this history is closed, no round can be added to it")

    def _start(self) -> None:
        """Take up what is on the disk, which is all that counts, and clear away what is half done."""
        load(self.directory)  # nothing is written to what is not sound
        with explained(str(self.directory)):
            self._save_wal()
        self._ledger = Ledger(self.directory / LEDGER)
        try:
            with explained(str(self.directory)):
                self._ledger.checkpoint()
                # Only now: a commit that a killed writer left half announced counts, or is gone for good.
                self.contents: Contents = load(self.directory)
                self._write_head()
                self.snapshots.keep_only(self.contents.needed())
                self._check_means()
        except BaseException:
            self._let_go()
            raise

    def _save_wal(self) -> None:
        """Make sure of the commits that only the WAL has: it may be here because forcing it failed."""
        with suppress(FileNotFoundError):
            write_again(self.directory / f"{LEDGER}-wal")

    def _check_means(self) -> None:
        """The means that coming rounds are compared with are read piece by piece: check them whole here."""
        for digest, need in self.contents.needed().items():
            if need.kind == "mean" and hash_regular(self.snapshots.path(digest)) != digest:
                raise DamagedError(f"{self.snapshots.path(digest)}: sha256 differs ({need})")

    def _write_head(self, ledger: str | None = None) -> None:
        Head(self.contents.entries, self.contents.head, ledger).write(self.directory)

    def record(self, round: Round) -> None:
        """Add a round; recording the last one again, with the same content, changes nothing."""
        self._open_ledger()
        updates, rejected = screen(round.updates, size=self.contents.charter.layout.size)
        _check_round(round, self.contents.charter, len(self.contents.rounds))
        if round.index == len(self.contents.rounds) - 1:
            return self._check_same(round, updates)
        with explained(f"{self.directory}: round {round.index} is not recorded"):
            entry = self._measuring.enter(self.contents, round, updates, rejected)
            self.snapshots.settle()
            staged = self.contents.extended(entry)
            decision = [staged.decide()] if staged.window_is_full() else []
            self._commit(entry, *decision)
        return None

    def _check_same(self, round: Round, updates: Updates) -> None:
        last = self.contents.rounds[-1]
        if last.clients != updates.clients or last.digests != digests_of(updates):
            raise RecordError(f"round {round.index} is recorded already, with other updates")

    def _commit(self, *entries: Entry) -> None:
        """Make entries part of the history: all of them or none."""
        contents, rows = self.contents, []
        for entry in entries:
            contents = contents.extended(entry)
            rows.append((contents.entries - 1, entry, contents.head))
        try:
            self._open_ledger().append(rows)
            previous, self.contents = self.contents, contents
            self._write_head()
        except BaseException:
            self._let_go()
            raise
        self.snapshots.drop(_files(previous, entries) - contents.needed().keys())

    def _open_ledger(self) -> Ledger:
        """The ledger; opened anew, with all that is on the disk, after something went wrong with it."""
        if self._ledger is None:
            self._start()
        if self._ledger is None or self.contents.closed:
            self._refuse()
        return self._ledger

    def _let_go(self) -> None:
        """Close the ledger without trust in it: the next call starts from what is on the disk."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            with suppress(HistoryError):
                ledger.close()

    def close(self) -> None:
        """Decide the open window, end the history, and seal it."""
        if self._ledger is None:
            self._start()
        with explained(f"{self.directory}: not closed"):
            if not self.contents.closed:
                decision = [self.contents.decide()] if self.contents.pending else []
                self._commit(*decision, Closing(len(self.contents.rounds)))
            self._seal()
        self.release()

    def _seal(self) -> None:
        """From here on not a byte changes."""
        try:
            self.snapshots.keep_only(self.contents.needed())
            self.snapshots.settle()
            if self._ledger is not None:
                self._ledger.checkpoint()
        finally:
            self._let_go()
        sync_directory(self.directory)  # the WAL is gone for good before the seal says so
        self._write_head(ledger=hash_regular(self.directory / LEDGER))

    def release(self) -> None:
        """Stop writing; the history stays open for a later writer."""
        self._let_go()
        self._measuring.release()
        self._lock.release()


def _files(contents: Contents, entries: Iterable[Entry]) -> set[str]:
    """The snapshots that the contents needed, or that these entries brought."""
    rounds = [e for e in entries if isinstance(e, RoundEntry)]
    brought = {name for e in rounds for name in (e.start, e.after, e.mean, e.updates) if name}
    return brought | contents.needed().keys()


def _check_round(round: Round, charter: Charter, expected: int) -> None:
    """The server's own part of a round is sound; what is not is a mistake in the caller's code."""
    if round.index not in (expected, expected - 1) or round.index < 0:
        raise RecordError(f"round {expected} comes next, got round {round.index}")
    for name, vector in (("start", round.start), ("aggregate", round.aggregate)):
        if np.shape(vector) != (charter.layout.size,) or vector.dtype != np.float32:
            raise RecordError(
                f"round {round.index}: {name} must be {charter.layout.size} float32 numbers, "
                f"got {getattr(vector, 'dtype', type(vector).__name__)} of shape {np.shape(vector)}"
            )
        if not is_finite(vector):
            raise RecordError(
                f"round {round.index}: {name} is not finite; pass what clients send through fedcrab.admit "
                "before aggregating"
            )
