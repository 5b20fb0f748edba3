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

SETTLED = 2_000_000_000  # nanoseconds; file systems store times to two seconds or better
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

    def add(self, digest: str, before: FileState, after: FileState) -> None:
        """Remember a file that was just verified, unless it changed meanwhile or only a moment ago."""
        if before == after and after[-1] + SETTLED < time.time_ns():
            self._states[digest] = after
