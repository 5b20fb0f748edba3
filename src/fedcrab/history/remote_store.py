"""Snapshots at an fsspec URL (``s3://…``, ``gs://…``, ``file://…``), fetched when they are needed.

A history directory with a ``remote.json`` has some or all of its snapshots at the URL in that file. Fetched
files are not trusted: each is checked against its hash before it gets its name. Credentials and endpoints
come from the environment; the file contains none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcrab.errors import ConfigError, DamagedError, HistoryError
from fedcrab.extras import install, need_extra
from fedcrab.files import Part, make_directory, read_json, sync_directory, write_named

REMOTE = "remote.json"
PROTOCOLS = ("s3", "gs", "gcs", "az", "abfs", "file")  # others could run or reach anything
PIECE = 2**20  # bytes read at a time
SMALL = 4096  # bytes of the largest small file
PART = 8 * 2**20  # bytes of one part of an upload
_URL = re.compile(r"([a-z][a-z0-9]*):/+(.*)", re.DOTALL)


def as_url(path: str | os.PathLike[str]) -> str | None:
    """Return the URL if this is one, even if it was made a ``Path``; None for a path."""
    found = _URL.fullmatch(os.fspath(path))
    if found is None:
        return None
    protocol, rest = found.groups()
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"{path}: not a supported URL; use one of {', '.join(f'{p}://' for p in PROTOCOLS)}"
        )
    return f"{protocol}://{'/' if protocol == 'file' else ''}{rest.rstrip('/')}"


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """The files of a history at a URL."""

    url: str

    @classmethod
    def at(cls, url: str) -> RemoteStore:
        """Return the store at a URL; raise ``ConfigError`` if it is not a URL."""
        found = as_url(url)
        if found is None:
            raise ConfigError(f"{url}: not a URL; give one such as s3://bucket/history")
        return cls(found)

    @classmethod
    def of(cls, directory: Path) -> RemoteStore | None:
        """Return the store that a history directory uses, or None."""
        path = directory / REMOTE
        if not path.exists():
            return None
        url = read_json(path, limit=2**16, what="a description of remote snapshots").get("url")
        if not isinstance(url, str) or as_url(url) != url:
            raise DamagedError(f"{path}: not a description of remote snapshots")
        return cls(url)

    def note(self, directory: Path) -> None:
        """Write this store's URL to a history directory."""
        write_named(directory / REMOTE, [json.dumps({"url": self.url}).encode()])
        sync_directory(directory)

    def sizes(self) -> dict[str, int]:
        """Return the complete files at the URL, with their sizes in bytes."""
        with self._reached("not listed") as (fs, root):
            found = fs.find(root, detail=True)
            return {path[len(root) :].lstrip("/"): int(facts["size"]) for path, facts in found.items()}

    def check_empty(self) -> None:
        """Raise ``HistoryError`` if there are files already."""
        if self.sizes():
            raise HistoryError(f"{self.url}: is not empty; choose another URL")

    def content(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist or is larger than ``SMALL``."""
        if self.sizes().get(name, SMALL + 1) > SMALL:
            return None
        with self._reached(f"{name} was not fetched") as (fs, root):
            return bytes(fs.cat_file(f"{root}/{name}"))

    def put(self, path: Path, name: str) -> None:
        """Upload a file; it gets its name only when it is complete."""
        with self._reached(f"{name} was not uploaded") as (fs, root):
            place = f"{root}/{name}"
            if "file" in fs.protocol:
                _copy_whole(path, Path(place))
            else:
                fs.put_file(str(path), place, chunksize=PART)
            if fs.info(place, refresh=True)["size"] != path.stat().st_size:
                raise OSError("it has a different size there")

    def get(self, name: str, path: Path, digest: str | None = None) -> None:
        """Fetch a file; raise ``DamagedError`` and leave nothing if it does not match its hash."""
        with self._reached(f"{name} was not fetched") as (fs, root):
            make_directory(path.parent.absolute())
            try:
                write_named(path, self._checked(fs, f"{root}/{name}", digest))
            except FileNotFoundError as error:
                raise DamagedError(f"{self.url}/{name}: missing") from error
            sync_directory(path.parent)

    def _checked(self, fs: Any, place: str, digest: str | None) -> Iterator[Part]:
        """Yield the bytes of a file; the last piece only after the hash of all is known to be correct."""
        found, last = hashlib.sha256(), b""
        with fs.open(place, "rb") as file:
            while piece := file.read(PIECE):
                found.update(piece)
                yield last
                last = piece
        if digest is not None and found.hexdigest() != digest:
            raise DamagedError(f"{self.url}: {Path(place).name} has changed (sha256 differs)")
        yield last

    @contextmanager
    def _reached(self, what: str) -> Iterator[tuple[Any, str]]:
        """The file system behind the URL; turns every error into one sentence."""
        if self.url.startswith("s3:"):
            need_extra("s3", self.url)
        try:
            import fsspec

            fs, root = fsspec.core.url_to_fs(self.url)
            fs.invalidate_cache()  # other processes may have written there
            yield fs, root.rstrip("/")
        except (HistoryError, DamagedError, ConfigError):
            raise
        except ImportError as error:
            raise ConfigError(f"{self.url}: {error}; {install('s3')} for s3://") from error
        except Exception as error:  # every store raises its own errors
            message = " ".join(str(error).split())[:300] or type(error).__name__
            raise HistoryError(
                f"{self.url}: {what}: {message}; repeat the command, it continues with what is missing"
            ) from error


def _copy_whole(source: Path, target: Path) -> None:
    """Copy a file to another directory; it gets its name only when it is on the disk."""

    def pieces() -> Iterator[Part]:
        with source.open("rb") as file:
            while piece := file.read(PIECE):
                yield piece

    make_directory(target.parent)
    write_named(target, pieces())
    sync_directory(target.parent)
