"""A sound history that is made hostile, used, and made hostile again."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from fedcrab.history.chain import LEDGER
from torture import forge

ROOM = 32 * 2**20  # bytes that an interpreter may take whatever the file
HASH = "ab" * 32
COLUMNS = {
    "rounds": "entry round loss divergence start after mean updates compared_with sketched coordinates",
    "clients": "round client examples norm cosine selected sha256",
    "participants": "round ids numbers digits coordinates_sha256 coordinates",
    "rejections": "round place client reason",
    "windows": "entry number first last chosen reference",
    "closing": "entry rounds",
    "charter": "entry settings",
}


def set_cell(table: str, column: str, value: object, row: int) -> forge.Edit:
    """One value exchanged, in one row or in all; what SQLite itself refuses is left as it is."""
    some = "" if row < 0 else f" WHERE {column} IN (SELECT {column} FROM {table} LIMIT 1 OFFSET {row})"
    return lambda connection: connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?{some}", (value,))


def safetensors(table: object, data: bytes, *, length: int | None = None) -> bytes:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


class Victim:
    """A sound history, closed, that can be made hostile and sound again."""

    def __init__(self, directory: Path, sound: Path) -> None:
        self.path = directory / "history"
        shutil.copytree(sound, self.path)
        self.ledger = (self.path / LEDGER).read_bytes()
        _, self.entries, self.head = forge.edited(self.ledger)
        self.absurd = self.path / "snapshots" / "none"
        self.outside = directory / "outside"
        self.outside.mkdir()

    def put(self, ledger: bytes, *, sealed: bool = True) -> None:
        for left in ("-wal", "-shm"):
            Path(f"{self.path / LEDGER}{left}").unlink(missing_ok=True)
        forge.put_ledger(self.path, ledger, self.entries, self.head, sealed=sealed)

    def edit(self, *edits: forge.Edit) -> None:
        content, entries, digest = forge.edited(self.ledger, *edits)
        forge.put_ledger(self.path, content, entries, digest)

    def use(self) -> list[str]:
        before = forge.listing(self.path.parent)
        refused = forge.use(self.path)
        written = {p for p, state in forge.listing(self.path.parent).items() if before.get(p) != state}
        assert written <= {f"{self.path / LEDGER}-wal"}
        return refused

    def point_to(self, content: bytes) -> list[forge.Edit]:
        """Edits after which the ledger takes these bytes for the initial model and for every round's."""
        self.absurd.unlink(missing_ok=True)
        digest = hashlib.sha256(content).hexdigest()
        self.absurd = self.path / "snapshots" / f"{digest}.safetensors"
        self.absurd.write_bytes(content)
        columns = [set_cell("rounds", column, digest, -1) for column in ("start", "after")]
        return [forge.charter_with(initial_model=digest), *columns]

    def cost(self) -> tuple[list[str], int]:
        """What was refused, and the most memory that was taken beyond twice the size of the history."""
        size = sum(p.stat().st_size for p in self.path.rglob("*") if p.is_file())
        refused, peak = forge.cost(self.path, seconds=20)
        return refused, peak - 2 * size
