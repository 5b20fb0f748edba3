"""A history: what a server keeps while a model trains, and what can be read of it later.

Making a new history: built beside its place, then moved there in one step.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.mean import Aggregate
from fedcrab.errors import ConfigError, DamagedError, HistoryError, RecordError
from fedcrab.files import building_site, file_errors, make_directory
from fedcrab.history.answers import ClientAnswers, ServerProbe, round_of_answers
from fedcrab.history.chain import GENESIS, LEDGER, SNAPSHOTS, Head, link
from fedcrab.history.ledger import Ledger
from fedcrab.history.ledger_state import LedgerState
from fedcrab.history.limits import check_charter, real
from fedcrab.history.packed import packed_errors, packed_updates, rebuilt_error, rebuilt_model
from fedcrab.history.records import RoundRecord, Settings
from fedcrab.history.remote import Uploader, local_place, upload
from fedcrab.history.remote_store import RemoteStore, as_url
from fedcrab.history.selection import Selection, Selective
from fedcrab.history.snapshots import Snapshots
from fedcrab.history.verify import check_directory, load_state, verify
from fedcrab.history.views import as_frame, as_html, in_one_line
from fedcrab.history.writer import Writer
from fedcrab.state_dicts import flatten, is_flat, state_layout, unflatten
from fedcrab.types import ClientId, Layout, Round, ServerState, Updates, Vector

if TYPE_CHECKING:
    import pandas


def create(path: Path, charter: Settings, initial_model: Vector) -> None:
    """Lay a new history down at ``path``, whole or not at all. The name is durable once it is resumed."""
    check_charter(charter, initial_model)
    with file_errors(f"{path}: not created"):
        if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
            if _is_left_over(path, charter, initial_model):
                return
            raise HistoryError(f"{path}: there is something already; choose another place, or resume it")
        make_directory(path.parent)
        with building_site(path) as site:
            _build(site, charter, initial_model)
            load_state(site)  # what cannot be read back gets no name
            site.rename(path)


def _is_left_over(path: Path, charter: Settings, initial_model: Vector) -> bool:
    """Whether this is what the same call left when it failed after the move: ours, and no round in it."""
    if path.is_symlink() or not (path / LEDGER).is_file():
        return False
    try:
        found = load_state(path)
    except DamagedError:
        return False
    model = Snapshots(path / SNAPSHOTS).hash_of(charter.layout, initial_model)
    wanted = replace(charter, initial_model=model, seed=found.charter.seed)
    return found.entries == 1 and wanted.facts() == found.charter.facts()


def _build(site: Path, charter: Settings, initial_model: Vector) -> None:
    snapshots = Snapshots(site / SNAPSHOTS)
    snapshots.directory.mkdir()
    charter = replace(charter, initial_model=snapshots.put_model(charter.layout, initial_model))
    snapshots.settle()
    digest = link(GENESIS, charter)
    ledger = Ledger(site / LEDGER)
    try:
        ledger.lay_out()
        ledger.append([(0, charter, digest)])
        ledger.checkpoint()
    finally:
        ledger.close()
    Head(1, digest, None).write(site)


def _check_local(path: str | os.PathLike[str]) -> None:
    """Refuse a URL as the place to write: as a path it would be a directory called ``s3:``."""
    if (url := as_url(path)) is not None:
        raise ConfigError(
            f"{url}: a history is written to a local directory; give its path, and this URL as remote"
        )


class History:
    """A training as it was recorded. Made by :meth:`create`, :meth:`resume` or :meth:`open`."""

    def __init__(self, path: Path, contents: LedgerState | Writer) -> None:
        self.path = path
        self.where = str(path)  # for people: the URL that it was opened from, where it was
        self._writer = contents if isinstance(contents, Writer) else None
        self._read = contents if isinstance(contents, LedgerState) else None
        self._snapshots = Snapshots(path / SNAPSHOTS)
        store = RemoteStore.of(path) if self._writer is not None else None
        self._uploader = Uploader(path, store) if store is not None else None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        initial_model: Any,
        *,
        initial_loss: float = math.nan,
        selection: Selection | None = None,
        layout: Layout | None = None,
        aggregation: str = "fedavg",
        seed: int | None = None,
        gram_limit: int = 1000,
        sketch_size: int = 256,
        notes: str = "",
        remote: str | None = None,
    ) -> History:
        """Begin a history in a new directory; whole when this returns.

        ``initial_model`` is a torch module, a state dict or a flat vector, ``initial_loss`` its loss on the
        server's own examples, where it has any.
        Where it fails there is nothing, or an empty history that the same call takes up.
        ``aggregation`` is the name of the rule that makes the aggregates. ``seed`` draws the sketches of
        rounds with more than ``gram_limit`` clients; clients must not know it, and the system draws it
        unless it is given. ``notes`` are kept as they are, newlines included: a configuration, say.
        ``remote`` is a URL (``s3://…``) to which snapshots are moved as they settle, and the ledger is copied
        when the history is closed. All
        limits are asked before anything is created; a ConfigError says which one is in the way.
        """
        _check_local(path)
        flat = is_flat(initial_model)
        if layout is None:
            layout = Layout.flat(int(np.size(initial_model))) if flat else state_layout(initial_model)
        initial_model = initial_model if flat else flatten(initial_model, layout)
        charter = Settings(
            layout=layout,
            selection=Selective() if selection is None else selection,
            aggregation=aggregation,
            initial_model="",
            initial_loss=real("initial_loss", initial_loss, error=ConfigError),
            seed=secrets.randbits(63) if seed is None else seed,
            gram_limit=gram_limit,
            sketch_size=sketch_size,
            notes=notes,
        )
        store = None if remote is None else RemoteStore.at(remote)
        if store is not None and not Path(path).exists():
            store.check_empty()  # before the first round, not after the last
        create(Path(path), charter, initial_model)
        if store is not None:
            with file_errors(f"{path}: its remote place is not noted"):
                store.note(Path(path))
        return cls.resume(path)

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> History:
        """Go on writing a history, from its last acknowledged round; a second writer is refused."""
        _check_local(path)
        check_directory(Path(path))
        return cls(Path(path), Writer(Path(path)))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> History:
        """Read a history, also while it is written: the rounds committed by now, all checked.

        From a URL (``s3://…``) that a closed one was uploaded to, the ledger is fetched now, and each
        snapshot when it is first read, checked against its hash.
        """
        place = local_place(path)
        found = cls(place, load_state(place))
        found.where = as_url(path) or str(place)
        return found

    @staticmethod
    def verify(
        path: str | os.PathLike[str],
        *,
        head: str | None = None,
        key: str | os.PathLike[str] | None = None,
    ) -> list[str]:
        """Everything that is damaged, a sentence each; empty where every byte is as it was written.

        ``head`` is one noted elsewhere, which must be in the chain; ``key`` the file of a public key, by
        which the history must have been signed (``fedcrab seal``).
        """
        return verify(local_place(path), head=head, key=Path(key) if key else None).problems

    @overload
    def record(self, round: Round) -> None: ...

    @overload
    def record(
        self,
        round: ClientAnswers,
        *,
        model: Any = None,
        probe: ServerProbe | None = None,
        aggregate: Aggregate | None = None,
    ) -> dict[str, Any]: ...

    def record(
        self,
        round: Round | ClientAnswers,
        *,
        model: Any = None,
        probe: ServerProbe | None = None,
        aggregate: Aggregate | None = None,
    ) -> dict[str, Any] | None:
        """Add a round; it is on the disk, whole, when this returns.

        Of a loop of one's own: ``{client: (local model, examples)}``, each model a state dict, a torch module
        or a flat vector, trained from the last recorded one. Gives the model after the round, as a state
        dict: ``model`` where the loop has made it, else what ``aggregate`` makes of the answers (their
        weighted mean unless given). Answers that cannot be used are left out, and the ledger says why.
        ``probe`` measures loss and divergence; without it the loss is unknown, and the divergence is how far
        the model moved.
        """
        if self._writer is None:
            raise HistoryError(f"{self.path}: opened for reading; History.resume opens it for writing")
        if isinstance(round, Round):
            if any(given is not None for given in (model, probe, aggregate)):
                raise RecordError("model, probe and aggregate are for answers; a Round has all that it needs")
            self._write(round)
            return None
        made = round_of_answers(self, round, model=model, probe=probe, aggregate=aggregate)
        self._write(made)
        like = next((local for local, _ in round.values() if not is_flat(local)), self)
        return unflatten(made.start + made.aggregate, like)

    def _write(self, round: Round) -> None:
        if self._writer is None:
            raise HistoryError(f"{self.path}: opened for reading; History.resume opens it for writing")
        self._writer.record(round)
        if self._uploader is not None:
            self._uploader.offer(self._writer.contents.settled())

    def close(self) -> None:
        """Decide the open window and seal the history; for a reader, nothing.

        One with a ``remote`` place is then uploaded. Where that fails it is closed and whole here, and
        :meth:`upload` goes on with what is missing.
        """
        if self._writer is not None:
            self._stop_uploads()
            self._writer.close()
            self._writer = None  # from here on it is read as anybody reads it
            if self._uploader is not None:
                upload(self.path, keep=False)

    def upload(self, url: str | None = None, *, keep: bool = True) -> list[str]:
        """Copy a closed history to a URL, by default its ``remote`` one; gives what was missing there.

        Unless ``keep``, its snapshots leave this disk and are read from there.
        """
        if self._writer is not None:
            raise HistoryError(f"{self.path}: still open; it is uploaded when it is closed")
        return upload(self.path, url, keep=keep)

    def _stop_uploads(self) -> None:
        if self._uploader is not None:
            self._uploader.stop()

    def release(self) -> None:
        """Stop writing without closing the history; :meth:`resume` continues from here."""
        if self._writer is not None:
            self._stop_uploads()
            self._writer.release()
            self._writer = None  # from here on it is read as anybody reads it

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

    def __repr__(self) -> str:
        """In one line."""
        return in_one_line(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def to_frame(self) -> pandas.DataFrame:
        """A data frame of pandas (extra ``pandas``): one row per client and round."""
        return as_frame(self)

    @property
    def contents(self) -> LedgerState:
        """All entries, and what follows from them."""
        if self._writer is not None:
            return self._writer.contents
        if self._read is None:
            self._read = load_state(self.path)
        return self._read

    @property
    def charter(self) -> Settings:
        """What was fixed at creation."""
        return self.contents.charter

    @property
    def rounds(self) -> Sequence[RoundRecord]:
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
        return self.contents.clients

    def model(self, round: int) -> Vector:
        """M_t of a kept or pending round, checked against its hash.

        By ``Compact`` also of dropped rounds: the nearest earlier exact model plus the packed steps since.
        """
        if self._keeps_exactly(round):
            return self._snapshots.model(self.rounds[round].start, self.charter.layout)
        return rebuilt_model(self._snapshots, self.contents, round)

    def model_error(self, round: int) -> float:
        """A bound of ‖model(round) - M_t‖ over the trained numbers: 0 where the model was kept exactly."""
        if self._keeps_exactly(round):
            return 0.0
        return rebuilt_error(self._snapshots, self.contents, round)

    def _keeps_exactly(self, round: int) -> bool:
        """Whether a round's model is kept as it was, or can be rebuilt; refused where neither holds."""
        known = 0 <= round < len(self.rounds)
        if known and (self.contents.packed or self.contents.has_exact_model(round)):
            return self.contents.has_exact_model(round)
        raise HistoryError(f"{self.path}: the model before round {round} was not kept")

    def server_state(self, round: int) -> ServerState | None:
        """What the server kept beside the model before a round; None where it kept nothing.

        ``round`` may be the number of rounds: the state after the last one. Refused where it was not kept.
        """
        last = len(self.rounds)
        if not 0 <= round <= last:
            raise HistoryError(f"{self.path}: there are rounds 0 to {last - 1}, got {round}")
        if round == last:
            digest = self.rounds[-1].state_after if last else None
        else:
            digest = self.rounds[round].state_before
        if digest is not None and not self.contents.needs(digest):
            raise HistoryError(f"{self.path}: the server's state before round {round} was not kept")
        return None if digest is None else self._snapshots.state(digest)

    def initial_model(self) -> Vector:
        """M_0."""
        return self._snapshots.model(self.charter.initial_model, self.charter.layout)

    def final_model(self) -> Vector:
        """The model after the last round, from which training continues."""
        last = self.rounds[-1].after if self.rounds else self.charter.initial_model
        return self._snapshots.model(last, self.charter.layout)

    def updates(self, round: int) -> Updates:
        """The update vectors of a round, where the selection keeps them; by ``Compact`` as packed."""
        entry = self.rounds[round] if 0 <= round < len(self.rounds) else None
        if entry is None or entry.updates is None or not self.contents.has_updates(round):
            raise HistoryError(
                f"{self.path}: round {round} keeps no update vectors; Compact() and Everything() keep them"
            )
        if self.contents.packed:
            return packed_updates(self._snapshots, self.contents, round)
        shape = (len(entry.clients), self.charter.layout.size)
        vectors = self._snapshots.array(entry.updates, "updates", shape, "F32")
        return Updates(entry.clients, np.asarray(vectors, np.float32), entry.examples)

    def update_errors(self, round: int) -> NDArray[np.float64]:
        """‖q - u‖ of each client's stored update over the trained numbers; zeros where they are exact."""
        if self.contents.packed and 0 <= round < len(self.rounds):
            return packed_errors(self._snapshots, self.contents, round)
        return np.zeros(len(self.updates(round).clients))

    def bytes(self) -> dict[str, int]:
        """What it takes on disk: the ledger, the snapshots, both."""
        ledger = sum(p.stat().st_size for p in self.path.iterdir() if p.is_file())
        snapshots = sum(p.stat().st_size for p in self._snapshots.files() if p.is_file())
        return {"ledger": ledger, "snapshots": snapshots, "total": ledger + snapshots}
