"""Whether a history is what its hashes say: quick for every reader, thorough for ``verify``."""

from __future__ import annotations

from pathlib import Path
from stat import S_ISDIR, S_ISREG

from fedcrab.errors import DamagedError, HistoryError
from fedcrab.history.contents import Contents, Need, audit
from fedcrab.history.reading import read_entries
from fedcrab.history.seal import HEAD, LEDGER, SNAPSHOTS, Head
from fedcrab.history.snapshots import Snapshots


def load(directory: Path) -> Contents:
    """What the ledger says, all of it checked; the first thing that is wrong is raised."""
    check_directory(directory)
    contents, problems = _examine(directory)
    if problems or contents is None:
        raise DamagedError(f"{problems[0]}; 'fedcrab verify' tells what else is damaged")
    return contents


def verify(directory: Path) -> list[str]:
    """Everything that is damaged, a sentence each: the ledger and every byte of every snapshot."""
    check_directory(directory)
    contents, problems = _examine(directory)
    if contents is not None:
        problems += _snapshot_problems(directory, contents)
        problems += _strangers(directory, contents) if _is_sealed(directory) else []
    return problems


def check_directory(directory: Path) -> None:
    """There is a directory, and something of a history in it."""
    if not directory.is_dir():
        raise HistoryError(f"{directory}: no such directory; a history is made by History.create")
    if not any((directory / name).exists() for name in (LEDGER, HEAD, SNAPSHOTS)):
        raise HistoryError(f"{directory}: not a history (there is no {LEDGER} in it)")


def _examine(directory: Path) -> tuple[Contents | None, list[str]]:
    """The ledger against its head, its chain and its own rules."""
    path = directory / LEDGER
    try:
        head = Head.read(directory)  # before the ledger: a writer may be at work, and the ledger grows first
        problem = _kind_problem(directory) or head.problem(directory)
        if problem:
            return None, [problem]
        contents, problems = audit(read_entries(path, sealed=head.ledger is not None))
    except DamagedError as error:
        return None, [str(error)]
    problems = [f"{path}: {problem}" for problem in problems]
    if contents is not None and not problems:
        problems += _tail_problems(path, contents, head)
    return contents, problems


def _is_sealed(directory: Path) -> bool:
    """Whether the last step of closing was reached; until then unfinished files are no damage."""
    return Head.read(directory).ledger is not None


def _kind_problem(directory: Path) -> str | None:
    """A thing that is not what it must be: SQLite would follow a link, and wait for ever at a pipe."""
    kinds = {LEDGER: S_ISREG, f"{LEDGER}-wal": S_ISREG, f"{LEDGER}-shm": S_ISREG, SNAPSHOTS: S_ISDIR}
    for path in (directory / name for name in kinds):
        if path.is_symlink():
            return f"{path}: a link, where the thing itself must be"
        if path.exists() and not kinds[path.name](path.stat().st_mode):
            return f"{path}: not a plain file or directory as it must be"
    return None if (directory / LEDGER).exists() else f"{directory / LEDGER}: missing"


def _tail_problems(path: Path, contents: Contents, head: Head) -> list[str]:
    """Entries that were acknowledged and are gone, or were exchanged for others."""
    if contents.entries < head.entries:
        lost = head.entries - contents.entries
        return [f"{path}: the last {lost} acknowledged entries are missing (was the -wal file left behind?)"]
    if contents.entries == head.entries and contents.head != head.hash:
        return [f"{path}: the last entry is not the one that {HEAD} names"]
    return []


def _snapshot_problems(directory: Path, contents: Contents) -> list[str]:
    snapshots, problems = Snapshots(directory / SNAPSHOTS), []
    for digest, need in contents.needed().items():
        try:
            _check_snapshot(snapshots, digest, need, contents)
        except DamagedError as error:
            problems.append(f"{error} ({need})")
    return problems


def _check_snapshot(snapshots: Snapshots, digest: str, need: Need, contents: Contents) -> None:
    layout = contents.charter.layout
    if need.kind == "mean":
        snapshots.array(digest, "mean", (layout.size,), "F64")
    elif need.kind == "updates":
        rows = len(contents.rounds[need.round].clients)
        snapshots.array(digest, "updates", (rows, layout.size), "F32")
    else:
        snapshots.model(digest, layout)


def _strangers(directory: Path, contents: Contents) -> list[str]:
    """Files that a sealed history does not account for."""
    snapshots = Snapshots(directory / SNAPSHOTS)
    ours = {directory / LEDGER, directory / HEAD, snapshots.directory}
    ours |= {snapshots.path(digest) for digest in contents.needed()}
    wal, index = directory / f"{LEDGER}-wal", directory / f"{LEDGER}-shm"
    for left in (wal, index):  # by a reader who was there while the history was sealed; both say nothing
        if left.is_file() and not left.is_symlink() and (left == index or not left.stat().st_size):
            ours.add(left)
    found = [*sorted(directory.iterdir()), *(snapshots.files() if snapshots.directory.is_dir() else ())]
    return [f"{path}: not a part of this history" for path in found if path not in ours]
