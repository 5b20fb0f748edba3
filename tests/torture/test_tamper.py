"""Every single byte of a small history changed, its files cut, removed, exchanged: `verify` names it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedcrab import FedcrabError, Field, History, HistoryError, Layout, Round, Selective, Updates, plan
from torture import forge, recording

PATTERNS = (0x01, 0x80, 0xFF)
LAYOUT = Layout((Field("w", (2,)), Field("n", (1,), trained=False)))
ROUNDS = 3


def record(path: Path, *, rounds: int = ROUNDS, scale: float = 1.0) -> History:
    """A history as small as can be: three rounds, two clients, three numbers."""
    selection = Selective(alpha=0.5, rounds=0.6, clients=0.5, max_window=2)
    model = np.zeros(3, np.float32)
    history = History.create(
        path, model, initial_loss=1.0, selection=selection, layout=LAYOUT, seed=1, gram_limit=2
    )
    for t in range(rounds):
        updates = Updates(("a", "b"), np.array([[1, t, 1], [-t, 2, 1]], np.float32), np.array([1.0, 2.0]))
        step = np.full(3, scale, np.float32)
        history.record(Round(t, model, updates, step, 0.9, 0.1 * t))
        model = model + step
    return history


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    record(tmp_path / "history").close()
    return tmp_path / "history"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A history whose writer is gone without a word: copied from under it."""
    history = record(tmp_path / "writing")
    shutil.copytree(tmp_path / "writing", tmp_path / "history")
    history.release()
    shutil.rmtree(tmp_path / "writing")
    return tmp_path / "history"


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that a reader gets out of a history, or that it refuses."""

    contents: object
    decision: object


def read(path: Path) -> Seen | None:
    try:
        history = History.open(path)
        return Seen(recording.read(history), plan(history, {"a"}).to_table())
    except FedcrabError:
        return None


def ledger_read(path: Path) -> object:
    """What the ledger alone says, models unread; None where it is refused."""
    try:
        history = History.open(path)
        entries = [e.facts() for e in (*history.rounds, *history.contents.windows)]
        return entries, history.contents.head, plan(history, {"a"}).to_table()
    except FedcrabError:
        return None


def problems(path: Path) -> list[str]:
    """What verify says; that it cannot read something is said too."""
    try:
        return History.verify(path)
    except FedcrabError as error:
        return [str(error)]


def files(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file())


@contextmanager
def changed(file: Path, content: bytes) -> Iterator[None]:
    """The file with other content, and afterwards as it was."""
    before = file.read_bytes()
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(before)


@contextmanager
def flipped(fd: int, at: int, byte: int, pattern: int) -> Iterator[None]:
    os.pwrite(fd, bytes([byte ^ pattern]), at)
    try:
        yield
    finally:
        os.pwrite(fd, bytes([byte]), at)


def flips(path: Path, patterns: tuple[int, ...], step: int, offset: int) -> Iterator[tuple[Path, int]]:
    """Each ``step``-th byte of the history flipped, one at a time; the patterns take turns."""
    place = 0
    for file in files(path):
        content = file.read_bytes()
        fd = os.open(file, os.O_RDWR)
        try:
            for at, byte in enumerate(content):
                place += 1
                if place % step == offset % step:
                    with flipped(fd, at, byte, patterns[place // step % len(patterns)]):
                        yield file, at
        finally:
            os.close(fd)


def unnamed_in_closed(path: Path, pattern: int, step: int, offset: int = 0) -> tuple[int, list[str]]:
    """Flips of a closed history: how many, and those that are not named or are used in silence."""
    whole = ledger_read(path)
    assert whole is not None
    assert problems(path) == []
    tried, missed = 0, []
    for file, at in flips(path, (pattern,), step, offset):
        tried += 1
        if not any(file.name in problem for problem in problems(path)):
            missed.append(f"{file.name} byte {at}")
        if ledger_read(path) not in (None, whole):
            missed.append(f"{file.name} byte {at}: used")
    assert problems(path) == []
    return tried, missed


def unnamed_in_killed(path: Path, step: int, offset: int = 0) -> tuple[int, list[str]]:
    """Flips of an open history: how many, and those that are not named and yet change what is read."""
    whole, wal = read(path), path / "ledger.sqlite-wal"
    assert whole is not None
    assert problems(path) == []
    assert wal.stat().st_size > 0
    (path / "ledger.sqlite-shm").unlink()  # made anew by whoever reads first
    tried, missed = 0, []
    for file, at in flips(path, PATTERNS, step, offset):
        tried += 1
        named = any(file.name in p or "ledger.sqlite" in p for p in problems(path))
        if not named and read(path) != whole:
            missed.append(f"{file.name} byte {at}")
        (path / "ledger.sqlite-shm").unlink(missing_ok=True)
    assert problems(path) == []
    return tried, missed


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_flipped_byte_of_a_closed_history_is_named(closed, pattern):
    tried, missed = unnamed_in_closed(closed, pattern, step=31, offset=pattern)
    assert tried > 500
    assert missed == []


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_flipped_byte_of_a_closed_history_is_named(closed, pattern):
    tried, missed = unnamed_in_closed(closed, pattern, step=1)
    assert tried == sum(f.stat().st_size for f in files(closed))
    assert missed == []
    print(f"closed: {tried} bytes flipped with {pattern:#x}")


def test_a_flipped_byte_of_an_open_history_is_named_or_changes_nothing(killed):
    tried, missed = unnamed_in_killed(killed, step=211)
    assert tried > 200
    assert missed == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_flipped_byte_of_an_open_history_is_named_or_changes_nothing(killed, part):
    tried, missed = unnamed_in_killed(killed, step=4, offset=part)
    assert tried > 10_000
    assert missed == []
    print(f"open: {tried} bytes flipped")


def unnamed_cuts(path: Path, step: int) -> tuple[int, list[str]]:
    tried, missed = 0, []
    for file in files(path):
        content = file.read_bytes()
        for length in {*range(0, len(content), step), len(content) - 1}:
            tried += 1
            with changed(file, content[:length]):
                if not any(file.name in problem for problem in problems(path)):
                    missed.append(f"{file.name} cut to {length}")
        with changed(file, content + b"\0"):
            if not any(file.name in problem for problem in problems(path)):
                missed.append(f"{file.name} with a byte more")
    assert problems(path) == []
    return tried, missed


def test_a_cut_file_is_named(closed):
    tried, missed = unnamed_cuts(closed, step=97)
    assert tried > 200
    assert missed == []


@pytest.mark.slow
def test_a_file_cut_at_any_length_is_named(closed):
    tried, missed = unnamed_cuts(closed, step=1)
    assert tried > 20_000
    assert missed == []
    print(f"closed: files cut at {tried} lengths")


def test_a_removed_file_is_named(closed):
    for file in files(closed):
        content = file.read_bytes()
        file.unlink()
        assert any(file.name in problem for problem in problems(closed)), file.name
        file.write_bytes(content)
    assert problems(closed) == []


def test_exchanged_files_are_named(closed):
    there = files(closed)
    for one in there:
        for other in there:
            if one < other:
                first, second = one.read_bytes(), other.read_bytes()
                with changed(one, second), changed(other, first):
                    named = problems(closed)
                    assert any(one.name in p or other.name in p for p in named), (one.name, other.name)
    assert problems(closed) == []


def test_a_link_in_place_of_a_file_is_named(closed, tmp_path):
    for thing in (*files(closed), closed / "snapshots"):
        away = tmp_path / "away"
        thing.rename(away)
        thing.symlink_to(away)
        assert any(thing.name in problem for problem in problems(closed)), thing.name
        if thing.parent == closed:
            assert read(closed) is None, thing.name
        thing.unlink()
        away.rename(thing)
    assert problems(closed) == []


@pytest.mark.parametrize(
    "name",
    ["notes.txt", ".hidden", "ledger.sqlite-wal", "ledger.sqlite-journal", ".ledger.head.tmp", "snapshots/x"],
)
def test_a_file_too_many_is_named(closed, name):
    whole = read(closed)
    (closed / name).write_bytes(b"something")
    assert any(name in problem for problem in problems(closed))
    assert read(closed) == whole


@pytest.mark.parametrize("name", ["ledger.sqlite-wal", "ledger.sqlite-shm", "notes"])
def test_a_link_too_many_is_named(closed, tmp_path, name):
    (tmp_path / "empty").touch()
    (closed / name).symlink_to(tmp_path / "empty")
    assert any(name in problem for problem in problems(closed))


def test_a_snapshot_of_another_history_is_named(closed, tmp_path):
    record(tmp_path / "other", scale=2.0).close()
    strangers = [
        p for p in files(tmp_path / "other" / "snapshots") if not (closed / "snapshots" / p.name).exists()
    ]
    shutil.copy(strangers[0], closed / "snapshots")
    assert any(strangers[0].name in problem for problem in problems(closed))


def test_resuming_a_closed_history_changes_nothing(closed):
    before = forge.listing(closed)
    with pytest.raises(HistoryError, match="closed"):
        History.resume(closed)
    assert forge.listing(closed) == before


def unnamed_wal_cuts(path: Path, step: int) -> tuple[int, list[int]]:
    """Lengths at which a cut WAL is neither named nor harmless."""
    whole, wal = read(path), path / "ledger.sqlite-wal"
    content = wal.read_bytes()
    lengths = range(0, len(content), step)
    missed = []
    for length in lengths:
        (path / "ledger.sqlite-shm").unlink(missing_ok=True)
        with changed(wal, content[:length]):
            if not problems(path) and read(path) != whole:
                missed.append(length)
    return len(lengths), missed


def test_a_cut_wal_is_named(killed):
    tried, missed = unnamed_wal_cuts(killed, step=503)
    assert tried > 20
    assert missed == []


@pytest.mark.slow
def test_a_wal_cut_at_any_length_is_named(killed):
    tried, missed = unnamed_wal_cuts(killed, step=1)
    assert tried > 10_000
    assert missed == []
    print(f"open: WAL cut at {tried} lengths")


def test_a_lost_wal_is_named(killed):
    (killed / "ledger.sqlite-wal").unlink()
    assert any("ledger.sqlite" in p and "missing" in p for p in problems(killed))
    assert read(killed) is None


def test_an_older_wal_is_named(killed, tmp_path):
    """The whole directory but one file put back to an earlier day."""
    history = record(tmp_path / "earlier", rounds=ROUNDS - 1)
    shutil.copy(tmp_path / "earlier" / "ledger.sqlite-wal", killed / "ledger.sqlite-wal")
    history.release()
    assert problems(killed) != []
    assert read(killed) is None
