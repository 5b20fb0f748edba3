"""The hash chain and its head: how many entries were acknowledged, and the hash of the last one.

``ledger.head`` is written after each commit. It reveals a lost tail, for example a WAL file that was cut off
or not copied. When a history is closed, the head also stores the sha256 of the ledger file, so that every
byte is covered, including those that SQLite ignores.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedcrab.errors import DamagedError
from fedcrab.files import hash_regular, read_regular, sync_directory, write_named
from fedcrab.history.records import Record
from fedcrab.history.snapshots import is_hash

GENESIS = hashlib.sha256(b"fedcrab history").hexdigest()


def link(previous: str, entry: Record) -> str:
    """Return the hash of an entry: over the hash of the previous entry and all its facts."""
    facts = json.dumps(entry.facts(), separators=(",", ":"))
    return hashlib.sha256(f"{previous}\n{facts}".encode()).hexdigest()


LEDGER = "ledger.sqlite"
HEAD = "ledger.head"
SNAPSHOTS = "snapshots"


@dataclass(frozen=True, slots=True)
class Head:
    """The last acknowledged entry."""

    entries: int
    hash: str
    ledger: str | None  # the sha256 of the ledger file; None until the history is closed

    def write(self, directory: Path) -> None:
        """Write the head to the disk, completely or not at all."""
        facts = json.dumps(asdict(self), separators=(",", ":"))
        check = hashlib.sha256(facts.encode()).hexdigest()
        write_named(directory / HEAD, [f"{facts}\n{check}\n".encode()])
        sync_directory(directory)

    @classmethod
    def read(cls, directory: Path) -> Head:
        """Return the head of a history, checked."""
        path = directory / HEAD
        content = read_regular(path, limit=4096)
        try:
            facts, check, rest = content.decode("ascii").split("\n")
            if rest or hashlib.sha256(facts.encode()).hexdigest() != check:
                raise DamagedError(f"{path}: its content does not match its own hash")
            head = cls(**json.loads(facts))
        except (ValueError, TypeError, RecursionError) as error:
            raise DamagedError(f"{path}: not a valid head of a history") from error
        if not isinstance(head.entries, int) or not is_hash(head.hash):
            raise DamagedError(f"{path}: not a valid head of a history")
        return head

    def problem(self, directory: Path) -> str | None:
        """Return what is wrong with the ledger file, or None."""
        if self.ledger is None or hash_regular(directory / LEDGER) == self.ledger:
            return None
        return f"{directory / LEDGER}: changed since it was sealed (sha256 differs)"
