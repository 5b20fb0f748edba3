"""One writer at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from fedcrab.errors import HistoryError


class Lock:
    """Only one process writes; the lock goes when the process goes, however it goes."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise HistoryError(
                f"{directory}: another writer has this history open; open it for reading, or stop the other"
            ) from error

    def release(self) -> None:
        """Let another writer in."""
        os.close(self._fd)
