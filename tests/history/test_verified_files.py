"""A stored file is hashed once per opened history, and again as soon as anything about it changes."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from fedcrab import Compact, DamagedError, Everything, History
from fedcrab.history import snapshots, verified_files
from fedcrab.seeds import rng_for
from recover.scenes import Answering, record


def answer(model: np.ndarray, client: str, t: int, epochs: object) -> tuple[np.ndarray, int]:
    return rng_for(9, client, t).normal(size=len(model)) * 0.1 - 0.1 * model, 10


@pytest.fixture(params=[Everything(), Compact()], ids=["everything", "compact"])
def recorded(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[History, Path]:
    """A history that is old enough, and the file with the updates of its round 1."""
    record(tmp_path / "h", Answering(answer), list("abc"), 3, request.param, model=np.zeros(600, np.float32))
    monkeypatch.setattr(verified_files, "SETTLED", 10_000_000)
    time.sleep(0.02)
    history = History.open(tmp_path / "h")
    return history, tmp_path / "h" / "snapshots" / f"{history.rounds[1].updates}.safetensors"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that is hashed from now on."""
    found: list[Path] = []
    check = snapshots._check_hash
    monkeypatch.setattr(
        snapshots, "_check_hash", lambda path, *rest: (found.append(path), check(path, *rest))
    )
    return found


def test_an_unchanged_file_is_hashed_once(recorded: tuple[History, Path], hashed: list[Path]) -> None:
    history, path = recorded
    first, again = history.updates(1), history.updates(1)
    assert first.vectors.tobytes() == again.vectors.tobytes()
    assert hashed == [path]
    History.open(history.path).updates(1)
    assert hashed == [path, path]


def test_files_that_were_verified_together_are_not_hashed_again(
    recorded: tuple[History, Path], hashed: list[Path]
) -> None:
    history, _ = recorded
    history.verify_ahead(0)
    wanted = [history.updates(t).vectors.tobytes() for t in range(3)]
    assert not hashed
    assert wanted == [History.open(history.path).updates(t).vectors.tobytes() for t in range(3)]


def test_a_damaged_file_among_them_is_found_by_its_reader(
    recorded: tuple[History, Path], hashed: list[Path]
) -> None:
    history, path = recorded
    written_in_place(path)
    time.sleep(0.02)
    history.verify_ahead(0)
    history.updates(0), history.updates(2)
    assert not hashed
    with pytest.raises(DamagedError, match="sha256"):
        history.updates(1)


def test_a_file_that_changed_a_moment_ago_is_left_to_its_reader(
    recorded: tuple[History, Path], hashed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    history, path = recorded
    monkeypatch.setattr(verified_files, "SETTLED", 10**15)
    history.verify_ahead(0)
    history.updates(1)
    assert hashed == [path]


def tampered(path: Path) -> bytes:
    content = path.read_bytes()
    return content[:-1] + bytes([content[-1] ^ 1])


def written_in_place(path: Path) -> None:
    changed = tampered(path)
    with path.open("r+b") as file:
        file.write(changed)


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(tampered(path))
    other.rename(path)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("change", [written_in_place, replaced, cut_off])
def test_a_change_after_the_first_read_is_found(recorded: tuple[History, Path], change: object) -> None:
    """Size and mtime are set back to what they were; the ctime cannot be."""
    history, path = recorded
    history.updates(1)
    state = path.stat()
    change(path)  # type: ignore[operator]
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(DamagedError, match="sha256"):
        history.updates(1)


def test_a_file_of_this_moment_is_hashed_every_time(
    recorded: tuple[History, Path], hashed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    history, path = recorded
    monkeypatch.setattr(verified_files, "SETTLED", 3600 * 10**9)
    history.updates(1)
    history.updates(1)
    assert hashed == [path, path]
