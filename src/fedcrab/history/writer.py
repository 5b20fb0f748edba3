"""The only writer of a history: measures a round, writes its files, and commits it to the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from datetime import datetime
from math import isnan
from pathlib import Path
from typing import NoReturn, TypedDict

import numpy as np

from fedcrab.errors import DamagedError, HistoryError, RecordError
from fedcrab.files import Lock, Part, file_errors, hash_regular, sync_directory, write_again
from fedcrab.history.chain import LEDGER, SNAPSHOTS, Head
from fedcrab.history.compact import Packing
from fedcrab.history.gram import GramMeasures, measure, measure_sketched
from fedcrab.history.ledger import Ledger
from fedcrab.history.ledger_state import LedgerState, NeededFile
from fedcrab.history.limits import checked_round
from fedcrab.history.participants import Participants
from fedcrab.history.records import ClosingRecord, Record, RoundRecord, Settings
from fedcrab.history.selection import Compact
from fedcrab.history.server_state import state_hash
from fedcrab.history.snapshots import Snapshots, array_parts, model_parts, row_parts, sums
from fedcrab.history.state import State
from fedcrab.history.verify import load_state
from fedcrab.sha256 import sha256_together
from fedcrab.types import Round, Updates, Vector, utc_now
from fedcrab.vectors import Matrix64, Sliced, first_equal, weighted_mean

SMALL = 2**10  # numbers of a sketch that are too few to matter
ROUNDING = 1e-9  # of a cosine: far more than the order of its sums can change


class Files(TypedDict):
    """The names of the files that belong to a round."""

    start: str
    after: str
    mean: str
    updates: str | None


class RoundMeasurer:
    """Makes the entry of a round. Without kernels, a second thread takes half of the sums and hashes."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.snapshots = snapshots
        self._beside = ThreadPoolExecutor(1)

    def enter(self, now: State, round: Round) -> RoundRecord:
        """Write the snapshots of a round and measure it; nothing refers to them yet."""
        charter, updates = now.charter, round.updates
        measures = self._measure(now, round)
        cosines = measures.cosines[first_equal(updates.vectors)]
        selected = np.array(charter.selection.select(cosines.tolist()), bool)
        counted = updates.weights * selected
        mean = weighted_mean(updates.vectors, counted, charter.layout.trained(), self._beside)
        names, digests = self._put_snapshots(now, round, mean)
        return RoundRecord(
            index=round.index,
            loss=round.loss,
            divergence=round.divergence,
            **names,
            references=now.references,
            present=Participants(
                clients=updates.clients,
                examples=updates.weights.copy(),
                norms=measures.norms,
                cosines=cosines,
                selected=selected,
                raw_digests=bytes.fromhex("".join(digests)),
                coordinates=measures.coordinates,
            ),
            rejected=round.rejected,
            began=round.began,
            ended=round.ended,
            notes=round.notes or None,
            state_before=now.last.state_after if now.last else None,
            state_after=None if round.server is None else self.snapshots.put_state(round.server),
        )

    def _put_snapshots(self, now: State, round: Round, mean: Matrix64) -> tuple[Files, list[str]]:
        """Write the mean, the model after the round, and the updates if they are kept.

        Returns the names of the files, and the sha256 of each update. Everything is hashed together.
        """
        layout, updates = now.charter.layout, round.updates
        step = round.aggregate if updates.clients else None  # without answers, the model stays the same
        exact = self._beside.submit(self._put_exact, now.charter, round)
        packed = _packed_parts(now.charter, round)
        files = [array_parts("mean", mean), model_parts(layout, round.start, step)]
        others = [model_parts(layout, round.start), *map(_row_parts, updates.vectors)]
        names = self.snapshots.put_together([*packed, *files], others, self._beside)
        stored = names.pop(0) if packed else exact.result()
        start = names[2] if names[2] == now.model else self.snapshots.put_model(layout, round.start)
        return Files(start=start, after=names[1], mean=names[0], updates=stored), names[3:]

    def _put_exact(self, charter: Settings, round: Round) -> str | None:
        """Write the updates if the selection keeps them exactly."""
        if isinstance(charter.selection, Compact) or not charter.selection.keeps_updates(round.index):
            return None
        return self.snapshots.put_array("updates", round.updates.vectors)

    def differences(self, now: State, round: Round) -> list[str]:
        """Return what differs between this round and the last recorded one; empty if they are equal.

        Times do not count: a round that is repeated bit for bit has later times.
        """
        last, layout, updates = now.last, now.charter.layout, round.updates
        if last is None:
            return ["index"]
        step = round.aggregate if updates.clients else None
        same = {
            "start": self.snapshots.hash_of(layout, round.start) == last.start,
            "aggregate": self.snapshots.hash_of(layout, round.start, step) == last.after,
            "loss": _equal(round.loss, last.loss),
            "divergence": _equal(round.divergence, last.divergence),
            "clients": updates.clients == last.clients,
            "weights": updates.weights.tolist() == last.examples.tolist(),
            "updates": digests_of(updates) == list(last.digests),
            "rejected": round.rejected == last.rejected,
            "notes": (round.notes or None) == last.notes,
            "server": (None if round.server is None else state_hash(round.server)) == last.state_after,
        }
        if all(same.values()) and updates.clients:  # a step too small to change M_t still has a direction
            cosines = measure_sketched(
                updates.vectors, round.aggregate, (), layout.trained(), size=SMALL, seed=0, round=0
            ).cosines
            same["aggregate"] = bool(np.allclose(cosines, last.cosines, rtol=0, atol=ROUNDING))
        return [name for name, is_same in same.items() if not is_same]

    def _measure(self, now: State, round: Round) -> GramMeasures:
        charter, updates = now.charter, round.updates
        with ExitStack() as stack:
            means = [stack.enter_context(self._mean(earlier, charter)) for earlier in now.compared()]
            points = updates.vectors, round.aggregate, means, charter.layout.trained()
            if len(updates.clients) <= charter.gram_limit:
                return measure(*points)
            return measure_sketched(*points, size=charter.sketch_size, seed=charter.seed, round=round.index)

    def _mean(self, earlier: RoundRecord, charter: Settings) -> AbstractContextManager[Sliced]:
        return self.snapshots.vector(earlier.mean, "mean", charter.layout.size)

    def release(self) -> None:
        """Stop the second thread."""
        self._beside.shutdown()


def digests_of(updates: Updates) -> list[str]:
    """Return the sha256 of each update."""
    return sha256_together([*map(_row_parts, updates.vectors)])


def _row_parts(row: Vector) -> Iterator[Part]:
    """Yield the bytes of an update."""
    return (piece.astype("<f4", copy=False).data.cast("B") for piece in sums(row, None))


def _packed_parts(charter: Settings, round: Round) -> list[Iterator[Part]]:
    """Return the bytes of the file with packed updates and step, if the selection packs them."""
    if not isinstance(charter.selection, Compact):
        return []
    packing, updates = Packing(charter.layout, charter.selection.bits), round.updates
    step = round.aggregate if updates.clients else np.zeros_like(round.start)
    shape = len(updates.clients) + 1, packing.width
    return [row_parts("packed", shape, packing.packed(updates.vectors, step[None]))]


def _equal(one: float, other: float) -> bool:
    return one == other or (isnan(one) and isnan(other))


class Writer:
    """Adds rounds. A round is durable when :meth:`record` returns; if it fails, the round is not there.

    ``clock`` gives the times that a round comes without; None leaves them unknown.
    """

    def __init__(self, directory: Path, clock: Callable[[], datetime] | None = utc_now) -> None:
        self.directory = directory
        self._clock, self._opened = clock, clock() if clock else None
        self.snapshots = Snapshots(directory / SNAPSHOTS)
        self._lock = Lock(directory)
        self._ledger: Ledger | None = None
        self._measuring = RoundMeasurer(self.snapshots)
        try:
            with file_errors(f"{directory}: its name could not be made durable"):
                sync_directory(directory.absolute().parent)
            if Head.read(directory).ledger is not None:
                self._refuse()  # sealed: nothing is modified
            self._start()
            if self.contents.closed:
                with file_errors(f"{directory}: not sealed"):
                    self._seal()
                self._refuse()
        except BaseException:
            self.release()
            raise

    def _refuse(self) -> NoReturn:
        raise HistoryError(f"{self.directory}: this history is closed; no round can be added")

    def _start(self) -> None:
        """Load what is on the disk, and remove what is unfinished."""
        load_state(self.directory, writing=True)  # never write to a damaged history
        with file_errors(str(self.directory)):
            self._save_wal()
        self._ledger = Ledger(self.directory / LEDGER)
        try:
            with file_errors(str(self.directory)):
                self._ledger.checkpoint()
                self._ledger.migrate()
                # Only now: a commit that a killed writer left unacknowledged either counts or is gone.
                self.contents: LedgerState = load_state(self.directory, writing=True)
                self._write_head()
                self.snapshots.keep_only(self.contents.files())
                self._check_means()
        except BaseException:
            self._let_go()
            raise

    def _save_wal(self) -> None:
        """Make the commits durable that are only in the WAL: an fsync may have failed before."""
        with suppress(FileNotFoundError):
            write_again(self.directory / f"{LEDGER}-wal")

    def _check_means(self) -> None:
        """Check the means that later rounds are compared with: they are read in pieces, without a check."""
        for entry in () if self.contents.closed else self.contents.now.compared():
            path = self.snapshots.path(entry.mean)
            if hash_regular(path) != entry.mean:
                raise DamagedError(f"{path}: sha256 differs ({NeededFile('mean', entry.index)})")

    def _write_head(self, ledger: str | None = None) -> None:
        Head(self.contents.entries, self.contents.head, ledger).write(self.directory)

    def record(self, round: Round) -> None:
        """Add a round; recording the last one again, with the same content, changes nothing."""
        self._open_ledger()
        now = self.contents.now
        checked = checked_round(round, now.charter, now.rounds)
        if checked.index == now.rounds - 1:
            return self._check_same(checked)
        with file_errors(f"{self.directory}: round {checked.index} was not recorded"):
            entry = self._measuring.enter(now, self._timed(now, checked))
            self.snapshots.settle()
            after = now.extended(entry)
            decided = [_decided(after)] if after.window_is_full() else []
            self._commit((entry, after), *decided)
        return None

    def _timed(self, now: State, round: Round) -> Round:
        """The round with both times: by default it ends now and began when the one before it ended.

        The first round of this writer began when the history was opened for writing. A time is left out
        where the clock was set back, since no round ends before it begins.
        """
        if self._clock is None or self._opened is None:
            return round
        ended = round.ended or self._clock()
        before = now.last.ended if now.last else None
        began = round.began or max(self._opened, before or self._opened)
        if began <= ended:
            return replace(round, began=began, ended=ended)
        return round if round.began else replace(round, ended=ended)

    def _check_same(self, round: Round) -> None:
        """Let the last round be recorded again if it is equal: its acknowledgement may have been lost."""
        different = self._measuring.differences(self.contents.now, round)
        if different:
            raise RecordError(
                f"round {round.index} is already recorded, with different {', '.join(different)}; "
                f"the next round is {round.index + 1}"
            )

    def _commit(self, *steps: tuple[Record, State]) -> None:
        """Add entries, each with the state after it, to the history: all or none."""
        files = self.contents.now.files().union(*(_brought(entry) for entry, _ in steps))
        try:
            self._open_ledger().append([(now.entries - 1, entry, now.head) for entry, now in steps])
            for entry, now in steps:
                self.contents.take(entry, now)
            self._write_head()
        except BaseException:
            self._let_go()
            raise
        self.snapshots.drop(name for name in files if not self.contents.needs(name))

    def _open_ledger(self) -> Ledger:
        """Return the ledger; after an error it is opened again from what is on the disk."""
        self._lock.check()
        if self._ledger is None:
            self._start()
        if self._ledger is None or self.contents.closed:
            self._refuse()
        return self._ledger

    def _let_go(self) -> None:
        """Close the ledger after an error; the next call starts from what is on the disk."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            with suppress(HistoryError):
                ledger.close()

    def close(self) -> None:
        """Decide the open window, end the history, and seal it."""
        self._lock.check()
        if self._ledger is None:
            self._start()
        with file_errors(f"{self.directory}: not closed"):
            if not self.contents.closed:
                now = self.contents.now
                decided = [_decided(now)] if now.pending else []
                ending, after = ClosingRecord(now.rounds), decided[-1][1] if decided else now
                self._commit(*decided, (ending, after.extended(ending)))
            self._seal()
        self.release()

    def _seal(self) -> None:
        """Seal the history: from now on, no byte changes."""
        try:
            self.snapshots.keep_only(self.contents.files())
            self.snapshots.settle()
            if self._ledger is not None:
                self._ledger.checkpoint()
        finally:
            self._let_go()
        sync_directory(self.directory)  # the WAL must be gone before the seal says so
        self._write_head(ledger=hash_regular(self.directory / LEDGER))

    def release(self) -> None:
        """Stop writing; the history stays open for a later writer. Does nothing in a forked child."""
        if not self._lock.is_held:
            return
        self._let_go()
        self._measuring.release()
        self._lock.release()


def _decided(now: State) -> tuple[Record, State]:
    """Return the decision about the open window, and the state after it."""
    decision = now.decide()
    return decision, now.extended(decision)


def _brought(entry: Record) -> set[str]:
    """Return the snapshots that were written for an entry."""
    if not isinstance(entry, RoundRecord):
        return set()
    return {name for name in (entry.start, entry.after, entry.mean, entry.updates, entry.state_after) if name}
