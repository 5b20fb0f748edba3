"""Remembers which files were already verified, so that an unchanged one is not hashed again.

A file counts as unchanged if device, inode, size, mtime and ctime are those it had when its sha256 was
checked. Every write, truncation, rename or replacement changes the ctime, and no program can set it. A ctime
has the resolution of the system's clock, so a file is only remembered once its ctime is clearly in the past:
a later write then gets another one. Whoever can avoid this (root, a raw disk, another process of the same
user with the file mapped) can change this process too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path

from fedcrab.files import open_regular
from fedcrab.sha256 import sha256_together

SETTLED = 2_000_000_000  # nanoseconds; file systems store times to two seconds or better
PIECE = 2**17  # bytes of each file that are hashed at a time
FileState = tuple[int, int, int, int, int]


def state_of(fd: int) -> FileState:
    """Return what changes whenever an open file is written, replaced or renamed."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class VerifiedFiles:
    """The files that one opened history has verified."""

    def __init__(self) -> None:
        self._states: dict[str, FileState] = {}

    def has(self, digest: str, before: FileState, after: FileState) -> bool:
        """Return whether the file, before and after a read, is as it was when it was verified."""
        return before == after == self._states.get(digest)

    def knows(self, digest: str) -> bool:
        """Return whether the file was verified once."""
        return digest in self._states

    def add(self, digest: str, before: FileState, after: FileState) -> None:
        """Remember a file that was just verified, unless it changed meanwhile or only a moment ago."""
        if before == after and _is_settled(after):
            self._states[digest] = after

    def verify(self, files: Mapping[str, Path]) -> None:
        """Hash these files together, which costs less than one after the other; remember those that match.

        Files that cannot be remembered are left out: their reader hashes them, and finds what is damaged.
        """
        with ExitStack() as stack:
            opened = {digest: stack.enter_context(open_regular(path)) for digest, path in files.items()}
            before = {digest: state_of(file.fileno()) for digest, file in opened.items()}
            new = [d for d, state in before.items() if state != self._states.get(d) and _is_settled(state)]
            if len(new) > 1:
                for digest, found in zip(
                    new, sha256_together([_pieces(opened[d]) for d in new]), strict=True
                ):
                    if digest == found:
                        self.add(digest, before[digest], state_of(opened[digest].fileno()))


def _is_settled(state: FileState) -> bool:
    return state[-1] + SETTLED < time.time_ns()


def _pieces(file: BufferedReader) -> Iterator[bytes]:
    while piece := file.read(PIECE):
        yield piece
