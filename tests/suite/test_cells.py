"""The files of finished cells: whole, named by what they hold, and found out when they are changed."""

import json
from pathlib import Path

import pytest

from fedcrab import DamagedError
from fedcrab.suite.cells import Cells, Finished

DONE = Finished(
    {"numerics": 1, "training": {"seed": 3}},
    {"ta": 0.1 + 0.2, "asr": None, "rounds": 4},
    ((0, 5, 2.25, 0.5), (3, 10, None, 1e-17)),
    {"wall": 1.5},
)


@pytest.fixture
def store(tmp_path: Path) -> Cells:
    store = Cells(tmp_path)
    store.write(DONE)
    return store


def test_it_reads_back_as_it_was_written(store: Cells) -> None:
    assert store.find(DONE.key) == DONE
    assert store.sound(DONE.key)
    assert [path.name for path in store.directory.iterdir()] == [f"{DONE.key}.json"]
    text = store.path(DONE.key).read_text()
    assert json.loads(text)["measures"] == dict(DONE.measures)
    assert "\n  [0, 5, 2.25, 0.5],\n" in text


def test_what_is_not_there_is_not_there(tmp_path: Path) -> None:
    assert Cells(tmp_path).find(DONE.key) is None
    assert not Cells(tmp_path).sound(DONE.key)


@pytest.mark.parametrize("size", range(0, 300, 13))
def test_half_a_file_is_refused(size: int, store: Cells) -> None:
    store.path(DONE.key).write_bytes(store.path(DONE.key).read_bytes()[:size])
    with pytest.raises(DamagedError, match="delete it to compute it again"):
        store.find(DONE.key)
    assert not store.sound(DONE.key)
    assert len(store.damaged([DONE.key])) == 1


def test_an_edited_number_is_refused(store: Cells) -> None:
    path = store.path(DONE.key)
    path.write_text(path.read_text().replace('"rounds": 4', '"rounds": 5'))
    with pytest.raises(DamagedError, match="changed since it was written"):
        store.find(DONE.key)
    store.write(DONE)
    assert store.find(DONE.key) == DONE


def test_the_result_of_another_cell_is_refused(store: Cells) -> None:
    store.path(DONE.key).rename(store.path("f" * 24))
    with pytest.raises(DamagedError, match="the result of another cell"):
        store.find("f" * 24)


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "null", "{}", '{"sha256": 1}', "[" * 100_000])
def test_other_json_is_refused(text: str, store: Cells) -> None:
    store.path(DONE.key).write_text(text)
    with pytest.raises(DamagedError, match=r"not the result of a cell|changed since"):
        store.find(DONE.key)


def test_a_link_is_not_followed(store: Cells, tmp_path: Path) -> None:
    store.path(DONE.key).rename(tmp_path / "elsewhere.json")
    store.path(DONE.key).symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(DamagedError, match="a link"):
        store.find(DONE.key)


def test_work_under_way_is_hidden_from_git(tmp_path: Path) -> None:
    place = Cells(tmp_path / "results").work("abc")
    assert place.is_dir()
    assert (tmp_path / "results" / ".work" / ".gitignore").read_text() == "*\n"
