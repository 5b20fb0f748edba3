"""An anchor outside the history: its head, noted elsewhere or signed.

Anyone who can write to a history's directory can rewrite the whole chain. A head that is noted elsewhere, or
signed with a key that is stored elsewhere, reveals this: if the head is in the chain, every entry before it
is unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcrab.errors import ConfigError, DamagedError
from fedcrab.files import file_errors, read_regular, sync_directory, write_named
from fedcrab.history.ledger_state import LedgerState
from fedcrab.history.records import Record, RoundRecord
from fedcrab.history.signature import PLACE, problems_of, sign
from fedcrab.history.snapshots import is_hash

SIGNATURE = "ledger.signature"
FORMAT = "fedcrab head 1"
LARGEST = 4096  # bytes
Placed = tuple[int, Record | None, str]


@dataclass(frozen=True, slots=True)
class Anchors:
    """Heads to look for in a chain, and how many rounds each head found covers."""

    wanted: frozenset[str]
    found: dict[str, int] = field(default_factory=dict)

    def watch(self, placed: Iterable[Placed]) -> Iterator[Placed]:
        """Yield the same entries, and note the heads among them."""
        rounds = 0
        for place, entry, digest in placed:
            rounds += isinstance(entry, RoundRecord)
            if digest in self.wanted:
                self.found[digest] = rounds
            yield place, entry, digest


def checked_head(text: str) -> str:
    """Return a head that a user typed; raise ``ConfigError`` if it cannot be one."""
    head = text.strip().lower()
    if not is_hash(head):
        raise ConfigError(f"a head must be 64 hexadecimal digits, got {text[:80]!r}")
    return head


def read_signature(directory: Path) -> dict[str, Any] | None:
    """Return the signature that ``seal`` stored in a history, its format checked; None if there is none."""
    path = directory / SIGNATURE
    if not path.exists() and not path.is_symlink():
        return None
    try:
        table = json.loads(read_regular(path, limit=LARGEST))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: not a valid signature of a head") from error
    if (
        not isinstance(table, dict)
        or {*table} != {"format", "head", "rounds", "closed", PLACE}
        or table["format"] != FORMAT
        or not is_hash(table["head"])
    ):
        raise DamagedError(f"{path}: not a valid signature of a head")
    return table


def anchor_problems(
    directory: Path, anchors: Anchors, *, head: str | None, signed: Mapping[str, Any] | None, key: Path | None
) -> list[str]:
    """Return how a history contradicts a noted head, or a signature and a public key."""
    problems = []
    if head is not None and head not in anchors.found:
        problems.append(f"{directory}: the head {head} is not in its chain: rewritten, or another history")
    if signed is not None and anchors.found.get(signed["head"]) != signed["rounds"]:
        problems.append(f"{directory / SIGNATURE}: the signed head is not in the chain")
    if key is not None:
        if signed is None:
            return [*problems, f"{directory / SIGNATURE}: missing, but a key was given to check it with"]
        found = problems_of(signed[PLACE], _message(signed), key, what="head")
        problems += [f"{directory / SIGNATURE}: {problem}" for problem in found]
    return problems


def write_signature(directory: Path, contents: LedgerState, key: Path) -> dict[str, Any]:
    """Sign the head of a history with this private key, and write the signature to its directory."""
    table = {
        "format": FORMAT,
        "head": contents.head,
        "rounds": len(contents.rounds),
        "closed": contents.closed,
        PLACE: None,
    }
    table[PLACE] = sign(_message(table), key)
    with file_errors(f"{directory / SIGNATURE}: not written"):
        write_named(directory / SIGNATURE, [json.dumps(table, indent=1).encode() + b"\n"])
        sync_directory(directory)
    return table


def _message(table: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: JSON with sorted keys, without spaces and without the signature."""
    facts = {name: value for name, value in table.items() if name != PLACE}
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode("ascii")
