"""Checks whether a history matches its hashes: quickly for every reader, thoroughly for ``verify``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Any

import numpy as np

from fedcrab.errors import DamagedError, HistoryError
from fedcrab.files import TEMPORARY, is_locked
from fedcrab.history.anchor import (
    SIGNATURE,
    Anchors,
    anchor_problems,
    checked_head,
    read_signature,
    write_signature,
)
from fedcrab.history.chain import HEAD, LEDGER, SNAPSHOTS, Head
from fedcrab.history.consistency import round_problems, stored_problems, updates_problems
from fedcrab.history.ledger_file import LedgerFile
from fedcrab.history.ledger_reader import read_entries
from fedcrab.history.ledger_state import LedgerState, NeededFile, audit
from fedcrab.history.packed import packed_problems
from fedcrab.history.remote_store import REMOTE
from fedcrab.history.signature import check_private
from fedcrab.history.snapshots import ENDING, Snapshots, is_hash


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of ``verify``: there is no damage if ``problems`` is empty."""

    problems: list[str]
    head: str | None = None  # the hash of the last entry; None if the ledger cannot be read
    rounds: int = 0
    closed: bool = False
    anchored: int | None = None  # how many rounds the given head covers
    signature: str = "none"  # ``none``, ``not checked`` or ``holds`` (for the given key)
    signed: int | None = None  # how many rounds the signature covers


def load_state(directory: Path, *, writing: bool = False) -> LedgerState:
    """Return the checked state of the ledger; raise ``DamagedError`` with the first problem.

    A sealed ledger is compared with its seal byte by byte, and each round with its link in the chain when its
    clients are first read. An open ledger has no seal, so its whole chain is checked now. A writer keeps no
    rounds in memory: they are read again when needed.
    """
    check_directory(directory)
    contents, problems = _examine(directory, thorough=False, writing=writing)
    if problems or contents is None:
        raise DamagedError(f"{problems[0]}; run 'fedcrab verify' to see everything that is damaged")
    return contents


def verify(directory: Path, *, head: str | None = None, key: Path | None = None) -> Verdict:
    """Check the ledger, every byte of every snapshot, and that the numbers agree with each other.

    ``head`` is a head noted elsewhere; it must be in the chain. ``key`` is a public key; the history must
    have been signed with its private key (:func:`seal`).
    """
    check_directory(directory)
    head = None if head is None else checked_head(head)
    signed, unreadable = _signature(directory)
    anchors = Anchors(frozenset({h for h in (head, (signed or {}).get("head")) if h}))
    contents, problems = _examine(directory, anchors)
    if contents is None:
        return Verdict(problems + unreadable)
    problems += [f"{directory / LEDGER}: {problem}" for problem in _number_problems(contents)]
    problems += _snapshot_problems(directory, contents)
    problems += _seal_problems(directory, contents)
    problems += _strangers(directory, contents)
    problems += unreadable or anchor_problems(directory, anchors, head=head, signed=signed, key=key)
    return Verdict(
        problems,
        contents.head,
        len(contents.rounds),
        contents.closed,
        anchored=anchors.found.get(head or ""),
        signature="none" if signed is None else "not checked" if key is None or problems else "holds",
        signed=anchors.found.get(signed["head"]) if signed else None,
    )


def seal(directory: Path, key: Path) -> dict[str, Any]:
    """Sign the head of a history with a private key; a damaged history is refused."""
    check_private(key)
    if problems := verify(directory).problems:
        raise DamagedError(f"{problems[0]}; a damaged history is not signed")
    return write_signature(directory, load_state(directory), key)


def _signature(directory: Path) -> tuple[dict[str, Any] | None, list[str]]:
    try:
        return read_signature(directory), []
    except DamagedError as error:
        return None, [str(error)]


def _seal_problems(directory: Path, contents: LedgerState) -> list[str]:
    """A closed history has the sha256 of its ledger in the head, unless a writer is about to write it."""
    if not contents.closed or is_locked(directory) or Head.read(directory).ledger is not None:
        return []
    return [
        f"{directory / HEAD}: the history is closed, but not sealed: the sha256 of {LEDGER} is missing; "
        "if closing was interrupted, History.resume completes it"
    ]


def check_directory(directory: Path) -> None:
    """Raise ``HistoryError`` unless this is a directory that contains part of a history."""
    if not directory.exists():
        raise HistoryError(f"{directory}: no such directory; 'fedcrab train' or History.create makes one")
    if not directory.is_dir():
        raise HistoryError(f"{directory}: not a history, which is a directory")
    if not any((directory / name).exists() for name in (LEDGER, HEAD, SNAPSHOTS)):
        raise HistoryError(f"{directory}: not a history (it has no {LEDGER})")


def _examine(
    directory: Path, anchors: Anchors | None = None, *, thorough: bool = True, writing: bool = False
) -> tuple[LedgerState | None, list[str]]:
    """Check the ledger against its head, its chain and its rules; a sealed chain only if ``thorough``."""
    path = directory / LEDGER
    try:
        head = Head.read(directory)  # before the ledger, because a writer extends the ledger first
        problem = _kind_problem(directory) or head.problem(directory)
        if problem:
            return None, [problem]
        sealed = head.ledger is not None
        placed = read_entries(LedgerFile(path, sealed=sealed))
        watched = anchors.watch(placed) if anchors else placed
        stored = path if writing else None
        contents, problems = audit(watched, stored=stored, thorough=thorough or not sealed)
    except DamagedError as error:
        return None, [str(error)]
    problems = [text if text.startswith(f"{path}: ") else f"{path}: {text}" for text in problems]
    if contents is not None and not problems:
        problems += _tail_problems(path, contents, head)
    return contents, problems


def _is_sealed(directory: Path) -> bool:
    """Return whether closing was completed; until then unfinished files are not damage."""
    return Head.read(directory).ledger is not None


def _kind_problem(directory: Path) -> str | None:
    """Return a file of the wrong type: SQLite would follow a link, and wait forever at a pipe."""
    kinds = {LEDGER: S_ISREG, f"{LEDGER}-wal": S_ISREG, f"{LEDGER}-shm": S_ISREG, SNAPSHOTS: S_ISDIR}
    for path in (directory / name for name in kinds):
        try:
            mode = path.lstat().st_mode  # one call, because a writer may remove its files at any moment
        except (FileNotFoundError, NotADirectoryError):
            continue
        if S_ISLNK(mode):
            return f"{path}: this is a link; a plain file or directory is required"
        if not kinds[path.name](mode):
            return f"{path}: not a plain file or directory"
    return None if (directory / LEDGER).exists() else f"{directory / LEDGER}: missing"


def _tail_problems(path: Path, contents: LedgerState, head: Head) -> list[str]:
    """Return acknowledged entries that are missing or were replaced."""
    if contents.entries < head.entries:
        lost = head.entries - contents.entries
        return [f"{path}: the last {lost} acknowledged entries are missing (was the -wal file left behind?)"]
    if contents.entries == head.entries and contents.head != head.hash:
        return [f"{path}: the last entry is not the one that {HEAD} names"]
    return []


def _number_problems(contents: LedgerState) -> Iterator[str]:
    """Yield contradicting numbers in the rounds that match their hashes."""
    for entry in contents.rounds:
        with suppress(DamagedError):  # already reported
            yield from round_problems(entry)


def _snapshot_problems(directory: Path, contents: LedgerState) -> list[str]:
    snapshots, problems = Snapshots(directory / SNAPSHOTS), []
    needed = contents.needed()
    for digest, need in needed.items():
        try:
            _check_snapshot(snapshots, digest, need, contents)
            if need.kind == "updates":
                _check_step(snapshots, contents, need.round, needed)
        except DamagedError as error:
            problems.append(f"{error} ({need})")
    return problems


def _check_snapshot(snapshots: Snapshots, digest: str, need: NeededFile, contents: LedgerState) -> None:
    layout = contents.charter.layout
    if need.kind == "mean":
        snapshots.array(digest, "mean", (layout.size,), "F64")
    elif need.kind == "updates":
        entry = contents.rounds[need.round]
        vectors = snapshots.array(digest, "updates", (len(entry.clients), layout.size), "F32")
        for problem in updates_problems(entry, np.asarray(vectors, np.float32), layout.trained()):
            raise DamagedError(f"{snapshots.path(digest)}: {problem}")
    elif need.kind == "packed":
        for problem in packed_problems(snapshots, contents, need.round):
            raise DamagedError(f"{snapshots.path(digest)}: {problem}")
    elif need.kind == "state":
        snapshots.state(digest)
    else:
        snapshots.model(digest, layout)


def _check_step(
    snapshots: Snapshots, contents: LedgerState, round: int, kept: Mapping[str, NeededFile]
) -> None:
    """Compare the cosines with the step, where the models before and after the round are both kept.

    The model after it was rounded to float32: half a unit in the last place of each number.
    """
    entry, layout = contents.rounds[round], contents.charter.layout
    if not entry.clients or entry.updates is None or not {entry.start, entry.after} <= kept.keys():
        return
    problem = None
    with suppress(DamagedError):  # reported with the model
        after = snapshots.model(entry.after, layout).astype(np.float64)
        step, error = after - snapshots.model(entry.start, layout), float(np.linalg.norm(after)) * 2.0**-24
        vectors = snapshots.array(entry.updates, "updates", (len(entry.clients), layout.size), "F32")
        exact = [0.0] * len(entry.clients)
        found = stored_problems(entry, np.asarray(vectors, np.float32), exact, step, error, layout.trained())
        problem = next(iter(found), None)
    if problem:
        raise DamagedError(f"{snapshots.path(entry.updates)}: {problem}")


def _strangers(directory: Path, contents: LedgerState) -> list[str]:
    """Return files that are not part of the history; an open one may have unfinished and replaced files."""
    snapshots = Snapshots(directory / SNAPSHOTS)
    sealed = contents.closed and _is_sealed(directory)
    ours = {directory / name for name in (LEDGER, HEAD, SIGNATURE, REMOTE, SNAPSHOTS)}
    ours |= {snapshots.path(digest) for digest in contents.needed()}
    wal, index = directory / f"{LEDGER}-wal", directory / f"{LEDGER}-shm"
    for left in (wal, index):  # left by a reader that was active during sealing; neither contains data
        says_nothing = left == index or not sealed or (left.exists() and not left.stat().st_size)
        if left.is_file() and not left.is_symlink() and says_nothing:
            ours.add(left)
    found = [*sorted(directory.iterdir()), *(snapshots.files() if snapshots.directory.is_dir() else ())]
    strangers = [path for path in found if path not in ours and (sealed or not _is_under_way(path))]
    return [f"{path}: not a part of this history" for path in strangers]


def _is_under_way(path: Path) -> bool:
    """Return whether an open history may have this file: unfinished, or no longer needed."""
    if path.is_symlink() or not path.is_file():
        return False
    snapshot = path.parent.name == SNAPSHOTS and path.name.endswith(ENDING) and is_hash(path.stem)
    return snapshot or (path.name.startswith(".") and path.name.endswith(TEMPORARY))
