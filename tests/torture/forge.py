"""Histories as an attacker would make them: any bytes, any values, with hashes and seals that fit."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import select
import signal
import sqlite3
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedcrab import FedcrabError, History, plan
from fedcrab.history.chain import GENESIS, HEAD, LEDGER, link
from fedcrab.history.gram import Coordinates
from fedcrab.history.ledger_file import LedgerFile
from fedcrab.history.ledger_reader import held, load
from fedcrab.history.participants import DIGEST, pack_numbers, unpack
from fedcrab.history.records import RoundRecord, Settings

PAGE = 4096
TABLES = ("charter", "rounds", "windows", "closing")
WAL_MODE, PLAIN_MODE = b"\2\2", b"\1\1"  # bytes 18 and 19 of a ledger's header
Edit = Callable[[sqlite3.Connection], object]


def write_head(path: Path, entries: int, digest: str, ledger: str | None) -> None:
    """A head that fits itself, whatever it says."""
    facts = json.dumps({"entries": entries, "hash": digest, "ledger": ledger}, separators=(",", ":"))
    (path / HEAD).write_text(f"{facts}\n{hashlib.sha256(facts.encode()).hexdigest()}\n")


def put_ledger(path: Path, content: bytes, entries: int, digest: str, *, sealed: bool = True) -> None:
    """Bytes as the ledger of a history, under a head that says they are right."""
    fd = os.open(path / LEDGER, os.O_WRONLY | os.O_CREAT)
    os.pwrite(fd, content, 0)
    os.ftruncate(fd, len(content))
    os.close(fd)
    write_head(path, entries, digest, hashlib.sha256(content).hexdigest() if sealed else None)


def edited(ledger: bytes, *edits: Edit) -> tuple[bytes, int, str]:
    """A ledger after these edits, its chain made to fit again; its entries and the last hash."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(ledger[:18] + PLAIN_MODE + ledger[20:])
    for edit in edits:
        edit(connection)
    entries, digest = _chain(connection)
    content = bytes(connection.serialize())
    connection.close()
    return content[:18] + WAL_MODE + content[20:], entries, digest


def _chain(connection: sqlite3.Connection) -> tuple[int, str]:
    places = sorted(
        (place, table)
        for table in TABLES
        if _is_table(connection, table)
        for (place,) in connection.execute(f"SELECT entry FROM {table}")
    )
    digest, file, charter = GENESIS, LedgerFile(Path(LEDGER), sealed=True), None
    for place, table in places:
        entry, _ = load(connection, table, place, file)
        charter = entry if isinstance(entry, Settings) else charter
        if isinstance(entry, RoundRecord):
            try:
                entry = None if charter is None else _held(connection, entry, charter, file)
            except (FedcrabError, ValueError, TypeError, OverflowError):
                entry = None
        if entry is None:  # no reader gets beyond this one
            break
        digest = link(digest, entry)
        connection.execute(f"UPDATE {table} SET hash = ? WHERE entry = ?", (digest, place))
    return len(places), digest


def _held(
    connection: sqlite3.Connection, entry: RoundRecord, charter: Settings, file: LedgerFile
) -> RoundRecord:
    """The round with its clients and its coordinates in memory; the hash of the latter as it must be."""
    entry = held(connection, entry, charter, file)
    found = entry.present()
    if entry.in_columns:
        query = "SELECT coordinates FROM participants WHERE round = ?"
        digest = hashlib.sha256(connection.execute(query, (entry.index,)).fetchone()[0]).hexdigest()
        edit = "UPDATE participants SET coordinates_sha256 = ? WHERE round = ?"
        connection.execute(edit, (digest, entry.index))
        return held(connection, entry, charter, file)
    numbers = found.coordinates.held.read_from(connection)
    return replace(entry, present=replace(found, coordinates=replace(found.coordinates, held=numbers)))


def _is_table(connection: sqlite3.Connection, name: str) -> bool:
    query = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?"
    return connection.execute(query, (name,)).fetchone() is not None


def where_possible(edit: Edit) -> Edit:
    """An edit that leaves alone what SQLite, or an edit before it, does not let it change."""

    def tolerant(connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error, ValueError, TypeError, OverflowError):
            edit(connection)

    return tolerant


def charter_with(**changes: Any) -> Edit:
    """Other settings in the charter."""

    def edit(connection: sqlite3.Connection) -> None:
        (text,) = connection.execute("SELECT settings FROM charter").fetchone()
        connection.execute("UPDATE charter SET settings = ?", (json.dumps({**json.loads(text), **changes}),))

    return edit


def client_with(round: int, client: str, **changes: Any) -> Edit:
    """Other numbers of one client in a round: ``norms``, ``cosines``, ``raw_digests``…"""

    def edit(connection: sqlite3.Connection) -> None:
        query = "SELECT ids, numbers FROM participants WHERE round = ?"
        found = unpack(*connection.execute(query, (round,)).fetchone(), Coordinates(0, False, np.zeros(0)))
        at = found.clients.index(client)
        for name, value in changes.items():
            column = getattr(found, name)
            if isinstance(column, bytes):
                changed = column[: DIGEST * at] + value + column[DIGEST * (at + 1) :]
            else:
                changed = np.where(np.arange(len(column)) == at, value, column)
            found = replace(found, **{name: changed})
        edit = "UPDATE participants SET numbers = ? WHERE round = ?"
        connection.execute(edit, (pack_numbers(found), round))

    return edit


def tower(ledger: bytes, table: str, levels: int) -> bytes:
    """A ledger in which a table's rows are reached over and over: pages that all point to one page."""
    connection = sqlite3.connect(":memory:")
    connection.deserialize(ledger[:18] + PLAIN_MODE + ledger[20:])
    query = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
    (root,) = connection.execute(query, (table,)).fetchone()
    connection.close()
    pages = [ledger[at : at + PAGE] for at in range(0, len(ledger), PAGE)]
    leaf = pages[root - 1]
    pages.append(leaf)
    for _ in range(levels):
        pages.append(_interior(leaf, child=len(pages)))
    pages[root - 1] = pages.pop()
    content = b"".join(pages)
    return content[:28] + struct.pack(">I", len(pages)) + content[32:]


def _interior(leaf: bytes, child: int) -> bytes:
    """A page full of cells that all point to one child; ``leaf`` is a leaf of the same tree."""
    indexed = leaf[0] == 0x0A
    first = struct.unpack_from(">H", leaf, 8)[0]
    cell = struct.pack(">I", child) + (_index_cell(leaf, first) if indexed else b"\x01")
    count = (PAGE - 12) // (len(cell) + 2)
    start = PAGE - count * len(cell)
    head = struct.pack(">BHHHBI", 0x02 if indexed else 0x05, 0, count, start, 0, child)
    pointers = b"".join(struct.pack(">H", start + i * len(cell)) for i in range(count))
    return (head + pointers).ljust(start, b"\0") + cell * count


def _index_cell(leaf: bytes, at: int) -> bytes:
    assert leaf[at] < 0x80, "a length of one byte"
    return leaf[at : at + 1 + leaf[at]]


def use(path: Path) -> list[str]:
    """All that a reader may do with a history; what was refused. Anything else that is raised is a bug."""
    refused = []
    try:
        refused += History.verify(path)
    except FedcrabError as error:
        refused.append(str(error))
    try:
        history = History.open(path)
        decide(history)
        read_models(history)
    except FedcrabError as error:
        refused.append(str(error))
    return refused


def decide(history: History) -> None:
    bad = {entry.clients[0] for entry in history.rounds[:2] if entry.clients} or {"a"}
    for evidence in ("all", "stored"):
        for rule in ("prefix", "last"):
            json.dumps(plan(history, bad, evidence=evidence, rule=rule).to_table())


def read_models(history: History) -> None:
    history.initial_model(), history.final_model()
    for t in history.kept:
        history.model(t)
        if history.rounds[t].updates:
            history.updates(t)


def listing(path: Path) -> dict[str, tuple[int, int]]:
    """Every file below, with its size and time: anything that is written shows."""
    found = {}
    for entry in os.scandir(path):
        if entry.is_dir(follow_symlinks=False):
            found |= listing(Path(entry.path))
        elif not entry.name.endswith("-shm"):
            status = entry.stat(follow_symlinks=False)
            found[entry.path] = status.st_size, status.st_mtime_ns
    return found


def cost(path: Path, *, seconds: float) -> tuple[list[str], int]:
    """Use a history in a process of its own: what was refused, and the most memory it took in bytes."""
    told, tell = os.pipe()
    pid = os.fork()
    if not pid:
        os._exit(_measured(path, tell))
    os.close(tell)
    try:
        with os.fdopen(told, "rb") as file:
            ready, _, _ = select.select([file], [], [], seconds)
            answer = file.read() if ready else b""
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert answer, f"no answer within {seconds} s"
    refused, peak = json.loads(answer)
    assert isinstance(refused, list), refused
    return refused, peak


def _measured(path: Path, tell: int) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
    before = _peak()
    try:
        refused: Any = use(path)
    except BaseException as error:
        refused = repr(error)
    os.write(tell, json.dumps([refused, _peak() - before]).encode())
    return 0


def _peak() -> int:
    """The most memory this process ever had in use; a forked one starts with what it has now."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
