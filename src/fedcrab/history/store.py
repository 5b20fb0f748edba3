"""A history: what a server keeps while a model trains, and what can be read of it later."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from fedcrab.errors import HistoryError
from fedcrab.history import creation, verification
from fedcrab.history.contents import Contents
from fedcrab.history.entries import Charter, RoundEntry
from fedcrab.history.seal import SNAPSHOTS
from fedcrab.history.selection import Selection, Selective
from fedcrab.history.snapshots import Snapshots
from fedcrab.history.writer import Writer
from fedcrab.types import ClientId, Layout, Round, Updates, Vector


class History:
    """A training as it was recorded. Made by :meth:`create`, :meth:`resume` or :meth:`open`."""

    def __init__(self, path: Path, contents: Contents | Writer) -> None:
        self.path = path
        self._writer = contents if isinstance(contents, Writer) else None
        self._read = contents if isinstance(contents, Contents) else None
        self._snapshots = Snapshots(path / SNAPSHOTS)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        initial_model: Vector,
        *,
        initial_loss: float,
        selection: Selection | None = None,
        layout: Layout | None = None,
        aggregation: str = "fedavg",
        seed: int | None = None,
        gram_limit: int = 1000,
        sketch_size: int = 256,
        notes: str = "",
    ) -> History:
        """Begin a history in a new directory; whole when this returns.

        Where it fails there is nothing, or an empty history that the same call takes up.
        ``aggregation`` is the name of the rule that makes the aggregates. ``seed`` draws the sketches of
        rounds with more than ``gram_limit`` clients; clients must not know it, and the system draws it
        unless it is given. ``notes`` are kept as they are: a configuration, say.
        """
        charter = Charter(
            layout=layout or Layout.flat(len(initial_model)),
            selection=selection or Selective(),
            aggregation=aggregation,
            initial_model="",
            initial_loss=float(initial_loss),
            seed=secrets.randbits(63) if seed is None else seed,
            gram_limit=gram_limit,
            sketch_size=sketch_size,
            notes=notes,
        )
        creation.create(Path(path), charter, initial_model)
        return cls.resume(path)

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> History:
        """Go on writing a history, from its last acknowledged round; a second writer is refused."""
        verification.check_directory(Path(path))
        return cls(Path(path), Writer(Path(path)))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> History:
        """Read a history, also while it is written: the rounds committed by now, all checked."""
        return cls(Path(path), verification.load(Path(path)))

    @staticmethod
    def verify(path: str | os.PathLike[str]) -> list[str]:
        """Everything that is damaged, a sentence each; empty where every byte is as it was written."""
        return verification.verify(Path(path))

    def record(self, round: Round) -> None:
        """Add a round; it is on the disk, whole, when this returns."""
        if self._writer is None:
            raise HistoryError(f"{self.path}: opened for reading; History.resume opens it for writing")
        self._writer.record(round)

    def close(self) -> None:
        """Decide the open window and seal the history; for a reader, nothing."""
        if self._writer is not None:
            self._writer.close()
            self._read, self._writer = self._writer.contents, None

    def release(self) -> None:
        """Stop writing without closing the history; :meth:`resume` goes on from here."""
        if self._writer is not None:
            self._writer.release()
            self._read, self._writer = self._writer.contents, None

    def __enter__(self) -> History:
        """Closed at the end of the block, or only released where the block failed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.release()

    @property
    def contents(self) -> Contents:
        """All entries, and what follows from them."""
        if self._writer is not None:
            return self._writer.contents
        if self._read is None:
            raise HistoryError(f"{self.path}: not open")
        return self._read

    @property
    def charter(self) -> Charter:
        """What was fixed at creation."""
        return self.contents.charter

    @property
    def rounds(self) -> Sequence[RoundEntry]:
        """Every round, kept or not."""
        return self.contents.rounds

    @property
    def kept(self) -> tuple[int, ...]:
        """The rounds whose models are kept."""
        return self.contents.kept

    @property
    def closed(self) -> bool:
        """Whether the training has ended."""
        return self.contents.closed

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Every client that was ever part of a round."""
        return tuple(sorted({client for entry in self.rounds for client in entry.clients}))

    def model(self, round: int) -> Vector:
        """M_t of a kept or pending round, checked against its hash."""
        if not 0 <= round < len(self.rounds) or self.contents.state(round) == "dropped":
            raise HistoryError(f"{self.path}: the model before round {round} was not kept")
        return self._snapshots.model(self.rounds[round].start, self.charter.layout)

    def initial_model(self) -> Vector:
        """M_0."""
        return self._snapshots.model(self.charter.initial_model, self.charter.layout)

    def final_model(self) -> Vector:
        """The model after the last round, from which training goes on."""
        last = self.rounds[-1].after if self.rounds else self.charter.initial_model
        return self._snapshots.model(last, self.charter.layout)

    def updates(self, round: int) -> Updates:
        """The update vectors of a round, where the selection keeps them."""
        entry = self.rounds[round] if 0 <= round < len(self.rounds) else None
        if entry is None or entry.updates is None or self.contents.state(round) == "dropped":
            raise HistoryError(f"{self.path}: round {round} keeps no update vectors; Everything() keeps them")
        shape = (len(entry.clients), self.charter.layout.size)
        vectors = self._snapshots.array(entry.updates, "updates", shape, "F32")
        return Updates(entry.clients, np.asarray(vectors, np.float32), entry.examples)

    def bytes(self) -> dict[str, int]:
        """What it takes on disk: the ledger, the snapshots, both."""
        ledger = sum(p.stat().st_size for p in self.path.iterdir() if p.is_file())
        snapshots = sum(p.stat().st_size for p in self._snapshots.files() if p.is_file())
        return {"ledger": ledger, "snapshots": snapshots, "total": ledger + snapshots}
