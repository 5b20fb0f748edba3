"""Histories of every format that ever was open, verify, plan and resume, for ever.

``fixtures/format-N`` is never made again: each was recorded by the program of its day. The same training is
there ``closed``, ``open`` (released with a pending window) and ``killed`` (its last rounds in the WAL alone);
``everything`` keeps update vectors. ``expected.json`` is what the program of that day read from them.
"""

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcrab import History, HistoryError, Round, Updates, plan
from fedcrab.history.migrate import CHANGES, FORMAT, format_of, schema

FIXTURES = Path(__file__).parents[1] / "fixtures"
FORMATS = sorted(int(p.name.removeprefix("format-")) for p in FIXTURES.glob("format-*"))
NAMES = [(number, name) for number in FORMATS for name in ("closed", "everything", "open", "killed")]
STILL_OPEN = [(number, name) for number, name in NAMES if name in ("open", "killed")]


@pytest.fixture
def kept(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any]]:
    """A copy of a fixture, and what is expected of it."""
    number, name = request.param
    source = FIXTURES / f"format-{number}"
    shutil.copytree(source / name, tmp_path / "h")
    return tmp_path / "h", json.loads((source / "expected.json").read_text())[name]


def sha(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def next_rounds(history: History, count: int) -> list[Round]:
    model, made = history.final_model(), []
    for index in range(len(history.rounds), len(history.rounds) + count):
        vectors = np.arange(2 * len(model), dtype=np.float32).reshape(2, -1) % (index + 2)
        step = vectors.mean(axis=0)
        made.append(Round(index, model, Updates(("a", "b"), vectors, np.ones(2)), step, 0.5, 0.1))
        model = model + step
    return made


def test_the_fixtures_are_there() -> None:
    assert list(range(1, FORMAT + 1)) == FORMATS  # a new format brings its own


@pytest.mark.parametrize("kept", NAMES, indirect=True)
def test_an_older_history_reads_as_it_did(kept: tuple[Path, dict[str, Any]]) -> None:
    path, expected = kept
    history = History.open(path)
    assert History.verify(path) == []
    assert history.contents.head == expected["head"]
    assert (history.contents.entries, history.closed) == (expected["entries"], expected["closed"])
    assert list(history.kept) == expected["kept"]
    assert {t: sha(history.model(int(t))) for t in expected["models"]} == expected["models"]
    assert {t: sha(history.updates(int(t)).vectors) for t in expected["updates"]} == expected["updates"]
    assert sha(history.final_model()) == expected["last"]
    if "ended" in expected:  # since format 2
        assert [entry.ended.isoformat() for entry in history.rounds] == expected["ended"]
    if "notes" in expected:  # since format 3
        assert [entry.notes for entry in history.rounds] == expected["notes"]
        found = {t: sha(history.server_state(int(t)).arrays["m"]) for t in expected["states"]}
        assert found == expected["states"]


@pytest.mark.parametrize("kept", NAMES, indirect=True)
def test_an_older_history_gives_the_same_plan(kept: tuple[Path, dict[str, Any]]) -> None:
    path, expected = kept
    table, wanted = plan(History.open(path), {"a"}, beta=0.3).to_table(), expected["plan"]
    assert table["rollback_round"] == wanted["rollback_round"]
    assert json.loads(json.dumps(table["replay"])) == wanted["replay"]
    for name in ("sensitivity", "threshold"):
        assert table[name] == pytest.approx(wanted[name], rel=1e-9)


@pytest.mark.parametrize("kept", STILL_OPEN, indirect=True)
def test_an_older_open_history_resumes(kept: tuple[Path, dict[str, Any]]) -> None:
    path, expected = kept
    history = History.resume(path)
    before = [entry.facts() for entry in history.rounds]
    assert history.contents.head == expected["head"]
    assert history.contents.pending
    for each in next_rounds(history, 4):
        history.record(each)
    history.close()
    again = History.open(path)
    assert History.verify(path) == []
    assert [entry.facts() for entry in again.rounds[: len(before)]] == before
    assert len(again.rounds) == len(before) + 4
    assert plan(again, {"a"}).candidates


@pytest.mark.parametrize("kept", [(n, "closed") for n in FORMATS], indirect=True)
def test_an_older_closed_history_stays_closed(kept: tuple[Path, dict[str, Any]]) -> None:
    path, _ = kept
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(HistoryError, match="closed"):
        History.resume(path)
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path / "ledger.sqlite")) as connection:
        rows = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")
        return {row[0] for row in rows}


@pytest.mark.parametrize("kept", STILL_OPEN, indirect=True)
def test_a_resumed_history_has_the_tables_of_a_new_one(
    kept: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    path, expected = kept
    History.open(path)
    assert tables(path) == schema(expected.get("format", 1))  # reading migrates nothing
    History.resume(path).release()
    History.create(tmp_path / "new", np.zeros(2, np.float32), initial_loss=1.0).release()
    assert tables(path) == tables(tmp_path / "new") == schema(FORMAT)
    assert History.open(path).contents.head == expected["head"]


def test_formats_have_no_gap_and_each_adds_something() -> None:
    assert sorted(CHANGES) == list(range(1, FORMAT + 1))
    assert len({schema(number) for number in CHANGES}) == FORMAT


def test_a_format_of_the_future_asks_for_a_newer_program(tmp_path: Path) -> None:
    History.create(tmp_path / "h", np.zeros(2, np.float32), initial_loss=1.0).release()
    with closing(sqlite3.connect(tmp_path / "h" / "ledger.sqlite")) as connection:
        assert format_of(connection) == FORMAT
        connection.execute(f"PRAGMA user_version={FORMAT + 1}")
    for use in (History.open, History.verify, History.resume):
        with pytest.raises(HistoryError, match=f"has format {FORMAT + 1}.*use a newer fedcrab"):
            use(tmp_path / "h")
