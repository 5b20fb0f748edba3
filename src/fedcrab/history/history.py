"""A history: what a server stores while a model trains, and how it is read later.

A new history is built in a directory beside its path and then moved there in one step.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
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
from fedcrab.history.snapshots import AHEAD, Snapshots
from fedcrab.history.verify import check_directory, load_state, verify
from fedcrab.history.views import as_frame, as_html, in_one_line
from fedcrab.history.writer import Writer
from fedcrab.state_dicts import flatten, is_flat, state_layout, unflatten
from fedcrab.types import ClientId, Layout, Round, ServerState, Updates, Vector, utc_now

if TYPE_CHECKING:
    import pandas


def create(path: Path, charter: Settings, initial_model: Vector) -> None:
    """Create a history at ``path``, completely or not at all. Resuming it makes the name durable."""
    check_charter(charter, initial_model)
    with file_errors(f"{path}: not created"):
        if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
            if _is_left_over(path, charter, initial_model):
                return
            raise HistoryError(f"{path}: already exists; choose another path, or resume it")
        make_directory(path.parent)
        with building_site(path) as site:
            _build(site, charter, initial_model)
            load_state(site)  # only a readable history gets its name
            site.rename(path)


def _is_left_over(path: Path, charter: Settings, initial_model: Vector) -> bool:
    """Return whether the same call left this behind when it failed after the move: no round is in it."""
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
    """A recorded training. Use :meth:`create`, :meth:`resume` or :meth:`open` to get one."""

    def __init__(self, path: Path, contents: LedgerState | Writer) -> None:
        self.path = path
        self.where = str(path)  # for messages: the URL that it was opened from, or the path
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
        clock: Callable[[], datetime] | None = utc_now,
    ) -> History:
        """Create a history in a new directory. It is complete when this returns.

        ``initial_model`` is a torch module, a state dict or a flat vector. ``initial_loss`` is its loss on
        the server's own examples, if there are any. ``aggregation`` is the name of the aggregation rule.
        ``notes`` is free text, for example a configuration; it is stored unchanged. ``seed`` draws the
        sketches of rounds with more than ``gram_limit`` clients. Clients must not know it; by default the
        operating system draws it. ``remote`` is a URL (``s3://…``). Snapshots are moved there once they are
        final, and the ledger is copied there when the history is closed. ``clock`` gives the times of rounds
        that come without; with None they have none, and the same rounds give the same head. All limits are
        checked before anything is created; ``ConfigError`` says which limit is exceeded. If the call fails
        later, it leaves nothing, or an empty history that the same call continues with.
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
            store.check_empty()  # fail before the first round, not after the last
        create(Path(path), charter, initial_model)
        if store is not None:
            with file_errors(f"{path}: its remote URL was not stored"):
                store.note(Path(path))
        return cls.resume(path, clock=clock)

    @classmethod
    def resume(
        cls, path: str | os.PathLike[str], *, clock: Callable[[], datetime] | None = utc_now
    ) -> History:
        """Continue a history after its last acknowledged round. A second writer is refused."""
        _check_local(path)
        check_directory(Path(path))
        return cls(Path(path), Writer(Path(path), clock))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> History:
        """Open a history for reading, also while it is being written: all rounds committed so far, checked.

        From a URL (``s3://…``) of a closed, uploaded history, the ledger is fetched now. Each snapshot is
        fetched when it is first read, and checked against its hash.
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
        """Return everything that is damaged, one sentence each; empty if every byte is unchanged.

        ``head`` is a head noted elsewhere; it must be in the chain. ``key`` is the file of a public key; the
        history must have been signed with its private key (``fedcrab seal``).
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
        """Add a round. It is durable when this returns.

        From your own loop, pass ``{client: (local model, examples)}``. Each local model is a state dict, a
        torch module or a flat vector, trained from the last recorded model. Returns the model after the round
        as a state dict: ``model`` if your loop has computed it, otherwise the result of ``aggregate``
        (default: the weighted mean). Unusable answers are left out, and the ledger says why. ``probe``
        measures loss and divergence. Without it the loss is unknown, and the distance that the model moved is
        the divergence.
        """
        if self._writer is None:
            raise HistoryError(f"{self.path}: opened for reading; History.resume opens it for writing")
        if isinstance(round, Round):
            if any(given is not None for given in (model, probe, aggregate)):
                raise RecordError("model, probe and aggregate go with answers; a Round already contains them")
            self._write(self._writer, round)
            return None
        made = round_of_answers(self, round, model=model, probe=probe, aggregate=aggregate)
        self._write(self._writer, made)
        like = next((local for local, _ in round.values() if not is_flat(local)), self)
        return unflatten(made.start + made.aggregate, like)

    def _write(self, writer: Writer, round: Round) -> None:
        writer.record(round)
        if self._uploader is not None:
            self._uploader.offer(writer.contents.settled())

    def close(self) -> None:
        """Close the open window and seal the history. Does nothing for a reader.

        A history with a ``remote`` URL is then uploaded. If that fails, the history is closed and complete on
        this disk, and :meth:`upload` uploads what is missing.
        """
        if self._writer is not None:
            self._stop_uploads()
            self._writer.close()
            self._writer = None  # from now on, it is read like any other
            if self._uploader is not None:
                upload(self.path, keep=False)

    def upload(self, url: str | None = None, *, keep: bool = True) -> list[str]:
        """Copy a closed history to a URL, by default its ``remote`` URL; return the copied files.

        With ``keep=False`` its snapshots are removed from this disk and read from the URL.
        """
        if self._writer is not None:
            raise HistoryError(f"{self.path}: still open; close it first, which uploads it")
        return upload(self.path, url, keep=keep)

    def _stop_uploads(self) -> None:
        if self._uploader is not None:
            self._uploader.stop()

    def release(self) -> None:
        """Stop writing without closing the history; :meth:`resume` continues from here."""
        if self._writer is not None:
            self._stop_uploads()
            self._writer.release()
            self._writer = None  # from now on, it is read like any other

    def __enter__(self) -> History:
        """Close the history at the end of the block, or only release it if the block failed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.release()

    def __repr__(self) -> str:
        """Return a summary in one line."""
        return in_one_line(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas data frame (extra ``pandas``) with one row per client and round."""
        return as_frame(self)

    @property
    def contents(self) -> LedgerState:
        """All entries of the ledger, and what follows from them."""
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
        """Every round, whether its model is kept or not."""
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
        """Every client that took part in any round."""
        return self.contents.clients

    def model(self, round: int) -> Vector:
        """Return M_t of a kept or pending round, checked against its hash.

        ``Compact`` also gives dropped rounds: the nearest earlier exact model plus the packed steps since.
        """
        if self._keeps_exactly(round):
            return self._snapshots.model(self.rounds[round].start, self.charter.layout)
        return rebuilt_model(self._snapshots, self.contents, round)

    def model_error(self, round: int) -> float:
        """Return a bound of ‖model(round) - M_t‖ over the trained numbers: 0 if the model is kept exactly."""
        if self._keeps_exactly(round):
            return 0.0
        return rebuilt_error(self._snapshots, self.contents, round)

    def _keeps_exactly(self, round: int) -> bool:
        """Return whether a round's model is kept exactly; raise if it cannot be rebuilt either."""
        known = 0 <= round < len(self.rounds)
        if known and (self.contents.packed or self.contents.has_exact_model(round)):
            return self.contents.has_exact_model(round)
        raise HistoryError(f"{self.path}: the model before round {round} was not kept")

    def server_state(self, round: int) -> ServerState | None:
        """Return the server's state that belongs to the model before a round; None if it had none.

        ``round`` may equal the number of rounds, for the state after the last one. Raises ``HistoryError`` if
        the state was not kept.
        """
        last = len(self.rounds)
        if not 0 <= round <= last:
            raise HistoryError(f"{self.path}: has rounds 0 to {last - 1}, got {round}")
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

    def updates(self, round: int, clients: Collection[ClientId] | None = None) -> Updates:
        """Return the update vectors of a round, if the selection keeps them; with ``Compact``, as packed.

        With ``clients``, those of these clients only.
        """
        digest, entry = self._updates_of(round), self.rounds[round]
        if self.contents.packed:
            return packed_updates(self._snapshots, self.contents, round, clients)
        shape = (len(entry.clients), self.charter.layout.size)
        vectors = self._snapshots.array(digest, "updates", shape, "F32")
        found = Updates(entry.clients, np.asarray(vectors, np.float32), entry.examples)
        return found if clients is None else found.only(clients)

    def verify_ahead(self, round: int) -> None:
        """Check the stored updates of the rounds from this one on, some together: faster if all are read."""
        rounds = range(round, min(round + AHEAD, len(self.rounds)))
        self._snapshots.verify_ahead([self._updates_of(t) for t in rounds])

    def update_errors(self, round: int) -> NDArray[np.float64]:
        """Return ‖q - u‖ of each client's stored update over the trained numbers; zeros if exact."""
        if self.contents.packed and 0 <= round < len(self.rounds):
            return packed_errors(self._snapshots, self.contents, round)
        self._updates_of(round)
        return np.zeros(len(self.rounds[round].clients))

    def _updates_of(self, round: int) -> str:
        """Return the hash of a round's update vectors; raise if they were not kept."""
        digest = self.rounds[round].updates if 0 <= round < len(self.rounds) else None
        if digest is None or not self.contents.has_updates(round):
            raise HistoryError(
                f"{self.path}: round {round} keeps no update vectors; Compact() and Everything() keep them"
            )
        return digest

    def bytes(self) -> dict[str, int]:
        """Return the bytes on disk: ledger, snapshots, total."""
        ledger = sum(p.stat().st_size for p in self.path.iterdir() if p.is_file())
        snapshots = sum(p.stat().st_size for p in self._snapshots.files() if p.is_file())
        return {"ledger": ledger, "snapshots": snapshots, "total": ledger + snapshots}
