"""Who may read and write: no write permission, a read-only file system, forks, readers that stay."""

import ctypes
import os
import shutil
import signal
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp

import pytest

from fedcrab import History, HistoryError, plan
from fedcrab.history import ledger
from torture import recording

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12
NEW_NAMESPACE, READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 0x20000, 1, 32, 4096, 16384, 1 << 18


def in_child(act: Callable[[], object]) -> str:
    """What a forked process says of its work: nothing, or why it failed."""
    told, tell = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(told)
        try:
            act()
        except BaseException:
            os.write(tell, traceback.format_exc().encode())
        os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as file:
        said = file.read().decode()
    os.waitpid(pid, 0)
    return said


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody can reach."""
    directory = Path(mkdtemp(prefix="fedcrab-access-"))
    directory.chmod(0o755)
    yield directory
    for path in [directory, *directory.rglob("*")]:
        path.chmod(0o755)
    shutil.rmtree(directory)


def record(path: Path, state: str) -> None:
    """A history that is closed, released, or whose writer was killed: then its last rounds are in the WAL."""
    writing = path.with_name("writing")
    history = recording.create(writing, "selective")
    for each in recording.rounds()[:5]:
        history.record(each)
    if state == "killed":
        shutil.copytree(writing, path, ignore=shutil.ignore_patterns("*-shm"))
        history.release()
        return
    history.close() if state == "closed" else history.release()
    writing.rename(path)


def read_all(path: Path) -> None:
    assert History.verify(path) == []
    history = History.open(path)
    assert len(history.rounds) == 5
    assert plan(history, {"a"}).to_table()
    history.final_model()
    history.bytes()


def refuse_writing(path: Path) -> None:
    if not History.open(path).closed:
        with pytest.raises(HistoryError) as error:
            History.resume(path)
        assert "\n" not in str(error.value)


STATES = ("closed", "released", "killed")


@pytest.mark.parametrize("state", STATES)
def test_a_history_opens_without_write_permission(state: str, place: Path) -> None:
    path = place / "h"
    record(path, state)
    for each in [*path.rglob("*"), path]:
        each.chmod(0o555 if each.is_dir() else 0o444)
    before = sorted(path.rglob("*"))

    def read() -> None:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        assert not os.access(path, os.W_OK)
        read_all(path)
        refuse_writing(path)

    assert in_child(read) == ""
    assert sorted(path.rglob("*")) == before


def mount_read_only(path: Path) -> None:
    """Make a directory read-only for this process; the system may not let it."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, flags: int) -> None:
        if libc.mount(source.encode(), target.encode(), None, flags, None):
            raise PermissionError(ctypes.get_errno(), "mount")

    if libc.unshare(NEW_NAMESPACE):
        raise PermissionError(ctypes.get_errno(), "unshare")
    mount("none", "/", RECURSIVE | PRIVATE)
    mount(str(path), str(path), BIND)
    mount(str(path), str(path), REMOUNT | BIND | READ_ONLY)


@pytest.mark.parametrize("state", STATES)
def test_a_history_opens_on_a_read_only_file_system(state: str, place: Path) -> None:
    path = place / "h"
    record(path, state)
    if "PermissionError" in in_child(lambda: mount_read_only(path)):
        pytest.skip("this system lets nobody mount")

    def read() -> None:
        mount_read_only(path)
        read_all(path)
        refuse_writing(path)

    assert in_child(read) == ""


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    history = recording.create(tmp_path / "h", "selective")
    history.record(recording.rounds()[0])
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        with pytest.raises(HistoryError, match="another writer"):
            History.resume(tmp_path / "h")
        history.release()
        again = History.resume(tmp_path / "h")
        again.record(recording.rounds()[1])
        again.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert History.verify(tmp_path / "h") == []


def test_the_lock_of_a_killed_writer_is_not_kept_by_its_child(tmp_path: Path) -> None:
    recording.create(tmp_path / "h", "selective").release()
    told, tell = os.pipe()
    parent = os.fork()
    if not parent:
        history = History.resume(tmp_path / "h")
        if not os.fork():
            os.write(tell, str(os.getpid()).encode())
            signal.pause()
            os._exit(0)
        signal.pause()
        os._exit(len(history.rounds))
    child = int(os.read(told, 20))
    try:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        History.resume(tmp_path / "h").close()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_cannot_write_and_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    history = recording.create(tmp_path / "h", "selective")
    history.record(recording.rounds()[0])

    def act() -> None:
        for write in (lambda: history.record(recording.rounds()[1]), history.close):
            with pytest.raises(HistoryError, match="another process"):
                write()
        assert len(History.open(tmp_path / "h").rounds) == 1
        history.release()

    assert in_child(act) == ""
    with pytest.raises(HistoryError, match="another writer"):
        History.resume(tmp_path / "h")
    history.record(recording.rounds()[1])
    history.close()
    assert History.verify(tmp_path / "h") == []


def test_closing_waits_for_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader in the middle of a long read, longer than SQLite itself would wait for it."""
    monkeypatch.setattr(ledger, "PATIENCE", 0.2)
    history = recording.create(tmp_path / "h", "selective")
    for each in recording.rounds()[:3]:
        history.record(each)
    with closing(sqlite3.connect(tmp_path / "h" / "ledger.sqlite", check_same_thread=False)) as reader:
        reader.isolation_level = None
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM rounds").fetchone()
        history.record(recording.rounds()[3])
        leaving = threading.Timer(1, reader.rollback)
        leaving.start()
        began = time.monotonic()
        history.close()
        assert time.monotonic() - began > 0.9
        leaving.join()
    assert History.verify(tmp_path / "h") == []
