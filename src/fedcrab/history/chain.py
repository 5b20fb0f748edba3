"""The head of a history: how many entries were acknowledged, and what the ledger's main file must be.

``ledger.head`` is written after each commit. It makes a lost tail visible: a WAL that was cut off or not
copied. Once a history is closed it also carries the sha256 of the ledger's file, so that every byte is
covered, also those that SQLite itself does not look at.
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
    """The hash of an entry: over the hash of the one before it and all its facts."""
    facts = json.dumps(entry.facts(), separators=(",", ":"))
    return hashlib.sha256(f"{previous}\n{facts}".encode()).hexdigest()


LEDGER = "ledger.sqlite"
HEAD = "ledger.head"
SNAPSHOTS = "snapshots"


@dataclass(frozen=True, slots=True)
class Head:
    """What was acknowledged last."""

    entries: int
    hash: str
    ledger: str | None  # the sha256 of the ledger's file, once the history is closed

    def write(self, directory: Path) -> None:
        """Put it on the disk, whole."""
        facts = json.dumps(asdict(self), separators=(",", ":"))
        check = hashlib.sha256(facts.encode()).hexdigest()
        write_named(directory / HEAD, [f"{facts}\n{check}\n".encode()])
        sync_directory(directory)

    @classmethod
    def read(cls, directory: Path) -> Head:
        """The head of a history, checked."""
        path = directory / HEAD
        content = read_regular(path, limit=4096)
        try:
            facts, check, rest = content.decode("ascii").split("\n")
            if rest or hashlib.sha256(facts.encode()).hexdigest() != check:
                raise DamagedError(f"{path}: its content is not what its own hash says")
            head = cls(**json.loads(facts))
        except (ValueError, TypeError, RecursionError) as error:
            raise DamagedError(f"{path}: not the head of a history") from error
        if not isinstance(head.entries, int) or not is_hash(head.hash):
            raise DamagedError(f"{path}: not the head of a history")
        return head

    def problem(self, directory: Path) -> str | None:
        """What is wrong with the ledger's file, if anything."""
        if self.ledger is None or hash_regular(directory / LEDGER) == self.ledger:
            return None
        return f"{directory / LEDGER}: its bytes are not those that were sealed (sha256 differs)"
