"""The results of finished cells: whole lines, found by what determines them, and refused when changed."""

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedcrab import ConfigError, DamagedError, HistoryError
from fedcrab.experiment import cell_cache
from fedcrab.experiment.cell_cache import CellCache, CellResult

DONE = CellResult(
    {"numerics": 1, "training": {"seed": 3}},
    {"ta": 0.1 + 0.2, "asr": None, "rounds": 4},
    ((0, 5, 2.25, 0.5), (3, 10, None, 1e-17)),
    {"wall": 1.5},
)
OTHER = replace(DONE, identity={"numerics": 1, "training": {"seed": 4}})
LINE = DONE.line()


@pytest.fixture
def store(tmp_path: Path) -> CellCache:
    store = CellCache(tmp_path, "suite")
    store.write(DONE)
    return store


def keep_alone(results: Path, done: CellResult) -> Path:
    """The result in a file of its own, as it was written before suites had a file."""
    table = json.loads(done.line())
    path = results / "cells" / f"{table.pop('key')}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(table, indent=1))
    return path


def test_it_reads_back_as_it_was_written(store: CellCache) -> None:
    assert store.find(DONE.key) == DONE
    assert store.has_result(DONE.key)
    assert [path.name for path in store.results.iterdir()] == ["suite.jsonl"]
    assert store.path.read_bytes() == LINE
    assert json.loads(LINE)["measures"] == dict(DONE.measures)
    store.write(OTHER)
    assert store.path.read_bytes() == LINE + OTHER.line()
    assert (store.find(DONE.key), store.find(OTHER.key)) == (DONE, OTHER)


def test_what_is_not_there_is_not_there(tmp_path: Path) -> None:
    assert CellCache(tmp_path).find(DONE.key) is None
    assert not CellCache(tmp_path).has_result(DONE.key)


def test_suites_share_their_cells(store: CellCache) -> None:
    (store.results / "log.jsonl").write_text('{"key": 3}\nno JSON at all\n')  # of some other program
    other = CellCache(store.results, "other")
    assert other.find(DONE.key) == DONE
    assert other.find(OTHER.key) is None
    assert not other.path.exists()


def test_a_file_of_its_own_is_still_found(tmp_path: Path) -> None:
    store, path = CellCache(tmp_path, "suite"), keep_alone(tmp_path, DONE)
    assert store.find(DONE.key) == DONE
    path.write_text(path.read_text().replace('"rounds": 4', '"rounds": 5'))
    with pytest.raises(DamagedError, match=r"cells/.*json: changed since it was written; delete it to"):
        store.find(DONE.key)
    keep_alone(tmp_path, DONE).rename(path.with_stem("f" * 24))
    with pytest.raises(DamagedError, match="the result of another cell"):
        store.find("f" * 24)
    store.write(DONE)
    assert store.find(DONE.key) == DONE


@pytest.mark.parametrize("size", [*range(0, len(LINE) - 1, 13), len(LINE) - 2])
def test_half_a_line_at_the_end_is_absent_and_is_cut_off(size: int, store: CellCache) -> None:
    """As a machine that lost its power may leave it; nobody was told that it was written."""
    store.path.write_bytes(OTHER.line() + LINE[:size])
    assert store.find(DONE.key) is None
    assert store.find(OTHER.key) == OTHER
    store.write(DONE)
    assert store.path.read_bytes() == OTHER.line() + LINE
    assert store.find(DONE.key) == DONE


def test_a_missing_line_end_loses_nothing(store: CellCache) -> None:
    store.path.write_bytes(LINE[:-1])
    assert store.find(DONE.key) == DONE
    store.write(OTHER)
    assert store.path.read_bytes() == LINE + OTHER.line()


@pytest.mark.parametrize("size", range(1, len(LINE) - 1, 13))
def test_half_a_line_in_the_middle_is_refused(size: int, store: CellCache) -> None:
    store.path.write_bytes(LINE[:size] + b"\n" + OTHER.line())
    with pytest.raises(DamagedError, match=r"suite.jsonl, line 1: .*delete the line to compute it again"):
        store.find(DONE.key)
    assert not store.has_result(DONE.key)
    assert len(store.damaged([DONE.key, OTHER.key])) == 1
    assert store.find(OTHER.key) == OTHER
    store.write(DONE)
    assert store.find(DONE.key) == DONE
    assert store.damaged([DONE.key, OTHER.key]) == []


def test_an_edited_number_is_refused(store: CellCache) -> None:
    store.path.write_bytes(LINE.replace(b'"rounds": 4', b'"rounds": 5'))
    with pytest.raises(DamagedError, match="changed since it was written"):
        store.find(DONE.key)
    store.write(DONE)
    assert store.find(DONE.key) == DONE


def test_the_result_of_another_cell_is_refused(store: CellCache) -> None:
    store.path.write_bytes(LINE.replace(DONE.key.encode(), b"f" * 24))
    with pytest.raises(DamagedError, match="the result of another cell"):
        store.find("f" * 24)


@pytest.mark.parametrize(
    "text", ["[]", "3", '"x"', "null", "{}", '{"sha256": 1}', "[" * 100_000, "<<<<<<< HEAD"]
)
def test_other_text_is_refused(text: str, store: CellCache) -> None:
    store.path.write_text(f"{text}\n")
    keep_alone(store.results, OTHER).write_text(text)
    for key in (DONE.key, OTHER.key):
        with pytest.raises(DamagedError, match=r"not the result of a cell|changed since"):
            store.find(key)


def test_a_link_is_not_followed(store: CellCache, tmp_path: Path) -> None:
    keep_alone(tmp_path, OTHER).rename(tmp_path / "own")
    (tmp_path / "cells" / f"{OTHER.key}.json").symlink_to(tmp_path / "own")
    with pytest.raises(DamagedError, match="a link"):
        store.find(OTHER.key)
    store.path.rename(tmp_path / "elsewhere")
    store.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedError, match="a link"):
        store.find(DONE.key)
    with pytest.raises(HistoryError, match=r"suite.jsonl: not written"):
        store.write(OTHER)
    assert (tmp_path / "elsewhere").read_bytes() == LINE


def test_a_result_that_could_not_be_read_again_is_not_written(
    store: CellCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_cache, "LARGEST", len(OTHER.line()) - 1)
    with pytest.raises(ConfigError, match="at most"):
        store.write(OTHER)
    assert store.path.read_bytes() == LINE


def numbered(writer: int, number: int) -> CellResult:
    identity = {"writer": writer, "number": number}
    return CellResult(identity, {"ta": 0.5}, tuple((t, t, 0.5, None) for t in range(400)))


def write_many(results: Path, writer: int, count: int) -> None:
    for number in range(count):
        CellCache(results, "suite").write(numbered(writer, number))


def test_several_processes_append_at_a_time(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write_many, args=(tmp_path, n, 25)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    store = CellCache(tmp_path, "suite")
    done = [numbered(writer, number) for writer in range(4) for number in range(25)]
    assert [store.find(result.key) for result in done] == done
    assert len(store.path.read_bytes().splitlines()) == 100


def test_killed_while_appending_every_line_is_whole(tmp_path: Path) -> None:
    """Writers are killed at random moments; of each, what is there are its first results, all whole."""
    fork, store = multiprocessing.get_context("fork"), CellCache(tmp_path, "suite")
    for writer in range(12):
        process = fork.Process(target=write_many, args=(tmp_path, writer, 10_000))
        process.start()
        time.sleep(0.01 + 0.0037 * writer)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    store.write(DONE)
    lines = store.path.read_bytes().splitlines(keepends=True)
    found = [tuple(json.loads(line)["cell"].values()) for line in lines[:-1]]
    assert lines[:-1] == [numbered(*which).line() for which in found]
    assert found == [(w, n) for w in range(12) for n in range(sum(f[0] == w for f in found))]
    assert len(found) > 12


def test_work_under_way_is_hidden_from_git(tmp_path: Path) -> None:
    place = CellCache(tmp_path / "results").work("abc")
    assert place.is_dir()
    assert (tmp_path / "results" / ".work" / ".gitignore").read_text() == "*\n"
