"""A history whose snapshots are at a URL: moved there once they are final, fetched when they are needed.

url/snapshots/<sha256>.safetensors   as soon as no later decision can drop them
url/ledger.sqlite, url/ledger.head   when the history is closed; the head is last and makes it readable

A round counts once it is on the local disk; the upload follows. A file is removed from the local disk only
after it is complete at the URL. The next upload repeats an interrupted one, file by file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from fedcrab.errors import DamagedError, HistoryError
from fedcrab.files import make_directory, read_regular, sync_directory, write_named
from fedcrab.history.anchor import SIGNATURE
from fedcrab.history.chain import HEAD, LEDGER, SNAPSHOTS, Head
from fedcrab.history.remote_store import SMALL, RemoteStore, as_url
from fedcrab.history.snapshots import ENDING, Snapshots
from fedcrab.history.verify import load_state

CACHE = "FEDCRAB_CACHE"


def local_place(path: str | os.PathLike[str]) -> Path:
    """Return the directory of a history; for a URL, a cache directory with its ledger fetched."""
    url = as_url(path)
    if url is None:
        return Path(path)
    store, place = RemoteStore(url), _cache() / hashlib.sha256(url.encode()).hexdigest()[:24]
    make_directory((place / SNAPSHOTS).absolute())
    new = store.content(HEAD)
    if new is None:
        raise HistoryError(f"{url}: no closed history found there; a history is uploaded when it is closed")
    if not (place / HEAD).exists() or read_regular(place / HEAD, limit=SMALL) != new:
        store.get(LEDGER, place / LEDGER)
        store.note(place)
        write_named(place / HEAD, [new])
    if SIGNATURE in store.sizes():
        store.get(SIGNATURE, place / SIGNATURE)
    return place


def _cache() -> Path:
    """Return where histories from URLs are cached: FEDCRAB_CACHE, or the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get(CACHE) or Path(home) / "fedcrab") / "histories"


def upload(directory: Path, url: str | None = None, *, keep: bool = True) -> list[str]:
    """Copy a closed history to a URL, the head last; return the names of the copied files.

    ``url`` defaults to the URL that the history was created with. Files that are already there are skipped.
    With ``keep=False``, the snapshots are removed from this disk and read from the URL.
    """
    store = RemoteStore.at(url) if url else RemoteStore.of(directory)
    if store is None:
        raise HistoryError(f"{directory}: has no URL to upload to; give one, such as s3://bucket/history")
    contents = load_state(directory)
    if not contents.closed or Head.read(directory).ledger is None:
        raise HistoryError(f"{directory}: still open; close it first, which uploads it")
    head = read_regular(directory / HEAD, limit=SMALL)
    if store.content(HEAD) not in (None, head):
        raise HistoryError(f"{store.url}: contains another history; choose another URL")
    copied = send(store, directory, contents.files(), keep=True)
    for name in (SIGNATURE,) if store.content(HEAD) == head else (LEDGER, SIGNATURE, HEAD):
        if (directory / name).exists():
            store.put(directory / name, name)
            copied.append(name)
    if not keep:
        store.note(directory)
        _drop_local(store, directory, contents.files())
    return copied


def send(store: RemoteStore, directory: Path, digests: Iterable[str], *, keep: bool) -> list[str]:
    """Upload the snapshots that the URL lacks; with ``keep=False``, then remove them from this disk."""
    snapshots, there, copied = Snapshots(directory / SNAPSHOTS), store.sizes(), list[str]()
    wanted = sorted(digests)
    for path in (snapshots.path(digest) for digest in wanted):
        name = f"{SNAPSHOTS}/{path.name}"
        if path.exists() and there.get(name) != path.stat().st_size:
            store.put(path, name)
            copied.append(name)
        elif not path.exists() and name not in there:
            raise DamagedError(f"{path}: missing here and at {store.url}")
    if not keep:
        _drop_local(store, directory, wanted)
    return copied


def _drop_local(store: RemoteStore, directory: Path, digests: Iterable[str]) -> None:
    """Remove snapshots that are complete at the URL."""
    there = store.sizes()
    for digest in digests:
        path = directory / SNAPSHOTS / (digest + ENDING)
        if path.exists() and there.get(f"{SNAPSHOTS}/{path.name}") == path.stat().st_size:
            path.unlink()
    sync_directory(directory / SNAPSHOTS)


class Uploader:
    """Uploads final snapshots in the background; what fails is tried again with the next ones."""

    def __init__(self, directory: Path, store: RemoteStore) -> None:
        self._directory, self._store = directory, store
        self._beside = ThreadPoolExecutor(1, "fedcrab-upload")
        self._running: Future[list[str]] | None = None
        self.failed: str | None = None  # why the last attempt failed

    def offer(self, settled: frozenset[str]) -> None:
        """Start to upload these, unless an upload is still running."""
        if self._running is not None and not self._running.done():
            return
        self._note()
        self._running = self._beside.submit(send, self._store, self._directory, settled, keep=False)

    def _note(self) -> None:
        running, self._running = self._running, None
        error = running.exception() if running is not None else None
        self.failed = str(error) if error is not None else None

    def stop(self) -> None:
        """Wait for the running upload."""
        self._beside.shutdown()
        self._note()
