"""Tensors on disk: safetensors files named by the sha256 of their content."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from fedcrab.errors import DamagedError
from fedcrab.files import (
    TEMPORARY,
    Part,
    open_regular,
    read_regular,
    sync_directory,
    write_addressed,
    write_addressed_together,
    write_named,
)
from fedcrab.history.remote_store import RemoteStore
from fedcrab.history.server_state import parse_state, state_parts
from fedcrab.history.verified_files import VerifiedFiles, state_of
from fedcrab.sha256 import sha256_together
from fedcrab.types import Layout, ServerState, Vector
from fedcrab.vectors import Matrix64, Sliced

ENDING = ".safetensors"
PIECE = 2**17  # numbers of a model written at a time
LARGE_PIECE = 2**20  # bytes of an array written at a time
HEADER = 2**20  # bytes, far more than the header of a layout needs
LARGEST_STATE = 2**40  # bytes
AHEAD, MOST_AHEAD = 16, 2**28  # files that are hashed together, and their bytes
RESERVED = "__metadata__"  # safetensors reserves this name for metadata
_HASH = re.compile(r"[0-9a-f]{64}")
_DTYPES: Mapping[str, type] = {"F32": np.float32, "F64": np.float64, "U8": np.uint8}


def is_hash(text: object) -> bool:
    """Return whether this is a sha256 as we write it, and so safe as a file name."""
    return isinstance(text, str) and _HASH.fullmatch(text) is not None


class Snapshots:
    """The directory of snapshots. A file is written once, under the hash of its content."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._verified = VerifiedFiles()

    def path(self, digest: str) -> Path:
        """Return the path of the snapshot with this hash."""
        return self.directory / (digest + ENDING)

    def found(self, digest: str) -> Path:
        """Return the path of the snapshot with this hash; fetch it first if it is only at the URL."""
        path = self.path(digest)
        if not path.exists() and (store := RemoteStore.of(self.directory.parent)):
            store.get(f"{self.directory.name}/{path.name}", path, digest)
        return path

    def put_model(self, layout: Layout, start: Vector, step: Vector | None = None) -> str:
        """Write the model ``start`` (or ``start + step``) with named tensors; return its hash."""
        return write_addressed(self.directory, model_parts(layout, start, step), ending=ENDING)

    def hash_of(self, layout: Layout, start: Vector, step: Vector | None = None) -> str:
        """Return the hash that :meth:`put_model` would return."""
        return sha256_together([model_parts(layout, start, step)])[0]

    def put_array(self, name: str, array: NDArray[np.float32] | NDArray[np.float64]) -> str:
        """Write one tensor; return its hash."""
        return write_addressed(self.directory, array_parts(name, array), ending=ENDING)

    def put_together(
        self,
        files: Sequence[Iterable[Part]],
        others: Sequence[Iterable[Part]],
        beside: Executor | None = None,
    ) -> list[str]:
        """Write these files; return their hashes, and those of other messages, hashed at the same time."""
        return write_addressed_together(self.directory, files, others, ending=ENDING, beside=beside)

    def put_state(self, state: ServerState) -> str:
        """Write the server's state; return its hash."""
        return write_addressed(self.directory, state_parts(state), ending=ENDING)

    def state(self, digest: str) -> ServerState:
        """Return the server's state with this hash, checked."""
        path = self.found(digest)
        content = read_regular(path, limit=LARGEST_STATE)
        if hashlib.sha256(content).hexdigest() != digest:
            raise DamagedError(f"{path}: its content does not match its name (sha256 differs)")
        return parse_state(path, content)

    @contextmanager
    def vector(self, digest: str, name: str, size: int) -> Iterator[Sliced]:
        """A float64 vector that is read in pieces. Its hash is not checked here."""
        fd = os.open(self.path(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield _OnDisk(fd, len(_header({name: (size,)}, "F64")))
        finally:
            os.close(fd)

    def settle(self) -> None:
        """Make the names of written files durable."""
        sync_directory(self.directory)

    def model(self, digest: str, layout: Layout) -> Vector:
        """Return the model with this hash as a flat vector, checked against the hash and the layout."""
        return read_model(self.found(digest), digest, layout)

    def array(self, digest: str, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[np.generic]:
        """Return one tensor with this hash, checked against the hash, the shape and the type."""
        path = self.found(digest)
        items = int(np.prod(shape, dtype=object)) if shape else 1
        size, head = items * np.dtype(_DTYPES[dtype]).itemsize, _header({name: shape}, dtype)
        content = _bytes(path, digest, size, self._verified)
        if content[: len(head)].tobytes() == head and len(content) == len(head) + size:  # as we write it
            return content[len(head) :].view(_DTYPES[dtype]).reshape(shape)
        return _tensor(path, _tensors(path, content.tobytes(), size), name, shape, dtype)

    def verify_ahead(self, digests: Sequence[str]) -> None:
        """Check the first of these files together with those after it that are read next, if all are here.

        What is read is bounded, so that the system's cache still has it when it is read again.
        """
        files, total = dict[str, Path](), 0
        for digest in digests[:AHEAD]:
            path = self.path(digest)
            total += path.stat().st_size if path.is_file() else MOST_AHEAD
            if total >= MOST_AHEAD or (not files and self._verified.knows(digest)):
                break
            files[digest] = path
        if len(files) > 1:
            self._verified.verify(files)

    def files(self) -> Iterator[Path]:
        """Yield everything in the directory, sorted by name."""
        yield from sorted(self.directory.iterdir())

    def keep_only(self, needed: Iterable[str]) -> None:
        """Remove snapshots that are not needed, and the remains of unfinished writes."""
        names = {self.path(digest).name for digest in needed}
        for path in self.files():
            ours = is_hash(path.name.removesuffix(ENDING)) or path.name.endswith(TEMPORARY)
            if ours and path.name not in names:
                self._discard(path)

    def drop(self, digests: Iterable[str]) -> None:
        """Remove these snapshots. One that cannot be removed now is removed at the next opening."""
        for digest in digests:
            self._discard(self.path(digest))

    def _discard(self, path: Path) -> None:
        with suppress(OSError):
            path.unlink(missing_ok=True)


class _OnDisk:
    def __init__(self, fd: int, start: int) -> None:
        self._fd, self._start = fd, start

    def copy_to(self, out: Matrix64, part: slice) -> None:
        wanted = 8 * (part.stop - part.start)
        if os.preadv(self._fd, [out.data.cast("B")], self._start + 8 * part.start) != wanted:
            raise OSError(errno.EIO, "a stored mean is shorter than expected")


def write_model(path: Path, layout: Layout, model: Vector) -> str:
    """Write a model under the given name, completely or not at all; return the sha256 of the file."""
    return write_named(path, model_parts(layout, model))


def read_model(path: Path, digest: str, layout: Layout) -> Vector:
    """Return a model file as a flat vector, checked against its hash and the layout."""
    tensors = _read(path, digest, layout.size * 4)
    vector = np.empty(layout.size, np.float32)
    for name, view in layout.views(vector).items():
        view[...] = _tensor(path, tensors, name, view.shape, "F32")
    if len(tensors) != len(layout.fields):
        raise DamagedError(f"{path}: has tensors that are not in the layout")
    return vector


def _read(path: Path, digest: str, size: int) -> dict[str, Mapping[str, object]]:
    """Return the tensors of a file with ``size`` bytes of data; its hash is checked first."""
    content = read_regular(path, limit=size + HEADER)
    _check_hash(path, content, digest)
    return _tensors(path, content, size)


def _bytes(path: Path, digest: str, size: int, verified: VerifiedFiles) -> NDArray[np.uint8]:
    """Return all bytes of such a file, its hash checked, without a second copy in memory.

    A file that was verified before and has not changed since is not hashed again.
    """
    with open_regular(path) as file:
        before = state_of(file.fileno())
        length = os.fstat(file.fileno()).st_size
        if length > size + HEADER:
            raise DamagedError(f"{path}: has {length} bytes, at most {size + HEADER} are allowed")
        content, done = np.empty(length, np.uint8), 0
        while done < length and (more := file.readinto(content[done:].data)):
            done += more
        after = state_of(file.fileno())
    if done < length or not verified.has(digest, before, after):
        _check_hash(path, content[:done].data, digest)
        verified.add(digest, before, after)
    return content[:done]


def _check_hash(path: Path, content: bytes | memoryview, digest: str) -> None:
    if hashlib.sha256(content).hexdigest() != digest:
        raise DamagedError(f"{path}: its content does not match its name (sha256 differs)")


def _tensors(path: Path, content: bytes, size: int) -> dict[str, Mapping[str, object]]:
    """Return the tensors of a file with ``size`` bytes of data."""
    length = 8 + int.from_bytes(content[:8], "little")
    if length > HEADER or length + size != len(content):
        raise DamagedError(f"{path}: expected {size} bytes of tensors after a header of at most {HEADER}")
    try:
        return dict(deserialize(content))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise DamagedError(f"{path}: not a safetensors file ({error})") from error


def _tensor(
    path: Path, tensors: Mapping[str, Mapping[str, object]], name: str, shape: tuple[int, ...], dtype: str
) -> NDArray[np.generic]:
    found = tensors.get(name)
    if found is None or found["dtype"] != dtype or found["shape"] != list(shape):
        raise DamagedError(f"{path}: has no {dtype} tensor {name!r} of shape {shape}")
    data = found["data"]
    if not isinstance(data, bytes | bytearray):
        raise DamagedError(f"{path}: tensor {name!r} has no data")
    return np.frombuffer(data, _DTYPES[dtype]).reshape(shape)


def header(layout: Layout) -> bytes:
    """Return the header of a model file."""
    return _header({f.name: f.shape for f in layout.fields}, "F32")


def _header(shapes: Mapping[str, tuple[int, ...]], dtype: str) -> bytes:
    """Return the header of a safetensors file: its length, then JSON, padded to align the data."""
    table, start = {}, 0
    for name, shape in shapes.items():
        stop = start + int(np.prod(shape, dtype=object)) * np.dtype(_DTYPES[dtype]).itemsize
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def model_parts(layout: Layout, start: Vector, step: Vector | None = None) -> Iterator[Part]:
    """Yield the bytes of the file with the model ``start`` (or ``start + step``)."""
    yield header(layout)
    for piece in sums(start, step):
        yield piece.data.cast("B")


def array_parts(name: str, array: NDArray[np.float32] | NDArray[np.float64]) -> Iterator[Part]:
    """Yield the bytes of the file with one tensor."""
    dtype = next(name for name, kind in _DTYPES.items() if array.dtype == kind)
    yield _header({name: array.shape}, dtype)
    yield from _pieces(np.ascontiguousarray(array).reshape(-1))


def row_parts(name: str, shape: tuple[int, int], rows: Iterable[NDArray[np.uint8]]) -> Iterator[Part]:
    """Yield the bytes of the file with one tensor of bytes, whose rows come a few at a time."""
    yield _header({name: shape}, "U8")
    for some in rows:
        yield from _pieces(some.reshape(-1))


def _pieces(flat: NDArray[np.generic]) -> Iterator[Part]:
    items = LARGE_PIECE // flat.itemsize
    for start in range(0, len(flat), items):
        yield flat[start : start + items].data.cast("B")


def sums(start: Vector, step: Vector | None) -> Iterator[NDArray[np.float32]]:
    """Yield ``start + step`` (or ``start``) in pieces, so that no third vector is needed."""
    for at in range(0, len(start), PIECE):
        piece = np.ascontiguousarray(start[at : at + PIECE], np.float32)
        if step is not None:
            with np.errstate(over="ignore"):
                piece = piece + step[at : at + PIECE]
        yield piece
