"""A history keeps what it is told, exactly, and refuses what it cannot keep."""

import hashlib
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from fedcrab import (
    Compact,
    ConfigError,
    Every,
    Everything,
    Field,
    History,
    HistoryError,
    Layout,
    RecordError,
    Rejection,
    Round,
    Selective,
    Updates,
)
from fedcrab.admission import no_updates
from trials.trainings import Training, training

SELECTIONS = [Selective(), Selective(rounds=1.0, max_window=2), Every(3), Everything()]


def write(path: Path, training: Training, **settings: object) -> History:
    settings = {"selection": training.selection, "seed": 1, **settings}
    return History.create(path, training.initial_model, initial_loss=training.initial_loss, **settings)


def models(training: Training) -> list[np.ndarray]:
    return [r.start for r in training.rounds] + [training.rounds[-1].start + training.rounds[-1].aggregate]


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_everything_recorded_comes_back_bit_for_bit(selection: object, tmp_path: Path) -> None:
    trained = training(taking_part=0.7, rounds=14)
    with write(tmp_path / "h", trained, selection=selection) as history:
        for r in trained.rounds:
            history.record(r)
    history = History.open(tmp_path / "h")
    assert history.closed
    assert History.verify(tmp_path / "h") == []
    np.testing.assert_array_equal(history.initial_model(), trained.initial_model)
    np.testing.assert_array_equal(history.final_model(), models(trained)[-1])
    for r, entry in zip(trained.rounds, history.rounds, strict=True):
        assert entry.clients == r.updates.clients
        assert entry.examples.tolist() == r.updates.weights.tolist()
        assert (entry.loss, entry.divergence) == (r.loss, r.divergence)
        assert entry.digests == tuple(hashlib.sha256(v.tobytes()).hexdigest() for v in r.updates.vectors)
        exact = r.updates.vectors.astype(float)
        assert entry.norms == pytest.approx(np.linalg.norm(exact, axis=1))
        assert entry.coordinates.gram()[: len(exact), : len(exact)] == pytest.approx(exact @ exact.T)
        if history.contents.state(r.index) == "kept":
            np.testing.assert_array_equal(history.model(r.index), r.start)
        else:
            with pytest.raises(HistoryError, match="was not kept"):
                history.model(r.index)


def test_update_vectors_are_kept_only_where_the_selection_keeps_them(tmp_path: Path) -> None:
    trained = training(rounds=5)
    for name, selection, expected in (
        ("selective", Selective(), []),
        ("every", Every(2), [0]),
        ("everything", Everything(), [0, 1, 2, 3, 4]),
    ):
        with write(tmp_path / name, trained, selection=selection) as history:
            for r in trained.rounds:
                history.record(r)
        found = [e.index for e in history.rounds if e.updates]
        assert found == expected
        for index in found:
            np.testing.assert_array_equal(
                history.updates(index).vectors, trained.rounds[index].updates.vectors
            )
    with pytest.raises(HistoryError, match="keeps no update vectors"):
        History.open(tmp_path / "selective").updates(0)


def test_snapshots_are_plain_safetensors_with_the_names_of_the_layout(tmp_path: Path) -> None:
    layout = Layout((Field("weight", (2, 3)), Field("steps", (), trained=False, integer=True)))
    model = np.arange(7, dtype=np.float32)
    history = History.create(tmp_path / "h", model, initial_loss=1.0, layout=layout)
    (file,) = (tmp_path / "h" / "snapshots").iterdir()
    tensors = safetensors.numpy.load(file.read_bytes())
    assert tensors["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["steps"].tolist() == 6
    assert file.name == hashlib.sha256(file.read_bytes()).hexdigest() + ".safetensors"
    history.close()


def test_the_snapshots_on_disk_are_those_needed_and_no_others(tmp_path: Path) -> None:
    trained = training(rounds=13)
    with write(tmp_path / "h", trained) as history:
        for r in trained.rounds:
            history.record(r)
            here = {p.stem for p in (tmp_path / "h" / "snapshots").iterdir()}
            assert here == history.contents.needed().keys()
    here = {p.stem for p in (tmp_path / "h" / "snapshots").iterdir()}
    assert len(here) == len(history.kept) + 1


def test_equal_updates_tie_wherever_they_stand(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    model = np.zeros(9973, np.float32)
    clients = tuple(f"{i:02}" for i in range(37))
    updates = Updates(clients, np.tile(rng.normal(size=9973).astype(np.float32), (37, 1)), np.ones(37))
    with History.create(tmp_path / "h", model, initial_loss=1.0) as history:
        history.record(Round(0, model, updates, rng.normal(size=9973).astype(np.float32), 1.0, 0.1))
    assert len(set(history.rounds[0].cosines.tolist())) == 1
    assert history.rounds[0].selected.tolist() == [True] * 26 + [False] * 11


def test_a_round_without_a_usable_answer_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    model, still = np.ones(2, np.float32), np.zeros(2, np.float32)
    away = (Rejection("a", "the update has values that are not finite"),)
    with History.create(tmp_path / "h", model, initial_loss=1.0) as history:
        history.record(Round(0, model, no_updates(2), still, 1.0, 0.0, away))
    history = History.open(tmp_path / "h")
    np.testing.assert_array_equal(history.final_model(), model)
    assert history.rounds[0].rejected == away


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    trained = training(rounds=3)
    history = write(tmp_path / "h", trained)
    history.record(trained.rounds[0])
    with pytest.raises(HistoryError, match="another writer"):
        History.resume(tmp_path / "h")
    reader = History.open(tmp_path / "h")
    history.record(trained.rounds[1])
    assert (len(reader.rounds), len(History.open(tmp_path / "h").rounds)) == (1, 2)
    with pytest.raises(HistoryError, match="opened for reading"):
        reader.record(trained.rounds[2])
    history.close()


def test_recording_goes_on_after_a_release_as_if_nothing_had_happened(tmp_path: Path) -> None:
    trained = training(rounds=14, taking_part=0.8)
    with write(tmp_path / "straight", trained, clock=None) as straight:
        for r in trained.rounds:
            straight.record(r)
    write(tmp_path / "broken", trained, clock=None).release()
    for r in trained.rounds:
        broken = History.resume(tmp_path / "broken", clock=None)
        broken.record(r)
        broken.release()
    broken = History.resume(tmp_path / "broken", clock=None)
    broken.close()
    assert broken.contents.head == straight.contents.head
    assert broken.kept == straight.kept


def test_the_last_round_may_be_recorded_again_but_not_changed(tmp_path: Path) -> None:
    trained = training(rounds=3)
    history = write(tmp_path / "h", trained)
    history.record(trained.rounds[0])
    head = history.contents.head
    history.record(trained.rounds[0])
    assert history.contents.head == head
    with pytest.raises(RecordError, match="expected round 1, got round 2"):
        history.record(trained.rounds[2])
    history.close()


def test_a_closed_history_stays_closed(tmp_path: Path) -> None:
    trained = training(rounds=2)
    with write(tmp_path / "h", trained) as history:
        history.record(trained.rounds[0])
    with pytest.raises(HistoryError, match="opened for reading"):
        history.record(trained.rounds[1])
    with pytest.raises(HistoryError, match="closed"):
        History.resume(tmp_path / "h")
    assert sorted(p.name for p in (tmp_path / "h").iterdir()) == ["ledger.head", "ledger.sqlite", "snapshots"]


def test_a_block_that_fails_leaves_the_history_open_to_be_resumed(tmp_path: Path) -> None:
    trained = training(rounds=2)
    with pytest.raises(RecordError), write(tmp_path / "h", trained) as history:
        history.record(trained.rounds[1])
    assert not History.open(tmp_path / "h").closed
    History.resume(tmp_path / "h").close()


def test_a_model_changed_between_rounds_is_recorded_as_it_was(tmp_path: Path) -> None:
    trained = training(rounds=2)
    moved = Round(1, trained.rounds[1].start + 1, *(getattr(trained.rounds[1], n) for n in _REST))
    with write(tmp_path / "h", trained, selection=Everything()) as history:
        history.record(trained.rounds[0])
        history.record(moved)
    np.testing.assert_array_equal(history.model(1), moved.start)


_REST = ("updates", "aggregate", "loss", "divergence")


def test_what_the_caller_does_with_its_arrays_afterwards_changes_nothing(tmp_path: Path) -> None:
    vectors, weights = np.ones((2, 3), np.float32), np.array([1.0, 2.0])
    model, step = np.zeros(3, np.float32), np.ones(3, np.float32)
    history = History.create(tmp_path / "h", model, initial_loss=1.0)
    history.record(Round(0, model, Updates(("a", "b"), vectors, weights), step, 1.0, 0.1))
    for array in (vectors, weights, model, step):
        array += 7
    history.close()
    assert history.rounds[0].examples.tolist() == [1.0, 2.0]
    assert history.model(0).tolist() == [0, 0, 0]
    assert history.final_model().tolist() == [1, 1, 1]
    assert history.rounds[0].facts() == History.open(tmp_path / "h").rounds[0].facts()


def test_a_history_without_rounds_can_be_closed(tmp_path: Path) -> None:
    write(tmp_path / "h", training()).close()
    assert History.verify(tmp_path / "h") == []
    assert History.open(tmp_path / "h").rounds == []


def test_readers_need_no_right_to_write(tmp_path: Path) -> None:
    trained = training(rounds=2)
    with write(tmp_path / "h", trained) as history:
        history.record(trained.rounds[0])
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "h").rglob("*"))
    History.open(tmp_path / "h")
    History.verify(tmp_path / "h")
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "h").rglob("*")) == before


@pytest.mark.parametrize(
    ("start", "aggregate", "word"),
    [
        (np.zeros(3, np.float32), np.zeros(2, np.float32), "start must be 2"),
        (np.zeros(2, np.float32), np.zeros(2), "aggregate must be 2 float32"),
        (np.zeros(2, np.float32), np.array([np.nan, 0], np.float32), "aggregate is not finite"),
    ],
)
def test_a_mistake_of_the_server_is_an_error(
    start: np.ndarray, aggregate: np.ndarray, word: str, tmp_path: Path
) -> None:
    updates = Updates(("a",), np.ones((1, 2), np.float32), np.ones(1))
    with History.create(tmp_path / "h", np.zeros(2, np.float32), initial_loss=1.0) as history:
        with pytest.raises(RecordError, match=word):
            history.record(Round(0, start, updates, aggregate, 1.0, 0.0))
        assert len(history.rounds) == 0


def test_a_place_that_is_taken_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "h").mkdir()
    history = write(tmp_path / "h", training())  # an empty directory is a fine place
    history.record(training().rounds[0])
    history.release()
    for place in (tmp_path / "h", tmp_path):
        with pytest.raises(HistoryError, match="already exists"):
            write(place, training())
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HistoryError, match="already exists"):
        write(tmp_path / "link", training())


@pytest.mark.parametrize(
    "settings", [{"gram_limit": 0}, {"sketch_size": -1}, {"seed": -3}, {"layout": Layout.flat(3)}], ids=str
)
def test_settings_that_make_no_sense_create_nothing(settings: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        write(tmp_path / "h", training(), **settings)
    assert list(tmp_path.iterdir()) == []


def calls(work: Callable[[], object]) -> int:
    """How many Python functions are called; unlike time, the same on every machine."""
    count = 0

    def counted(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("selection", [Everything(), Compact(max_window=1)], ids=["everything", "compact"])
def test_a_late_round_takes_as_much_work_and_memory_as_an_early_one(
    selection: object, tmp_path: Path
) -> None:
    trained = training(rounds=60, clients=30, size=10)
    history = write(tmp_path / "h", trained, selection=selection)
    work, memory = [], []
    tracemalloc.start()
    for r in trained.rounds:
        work.append(calls(lambda r=r: history.record(r)))
        memory.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sum(work[40:]) < 1.02 * sum(work[20:40])
    held = history.rounds[0].coordinates.numbers.nbytes
    assert memory[-1] - memory[19] < 40 * held / 2
    history.close()


def test_rounds_can_be_read_while_they_are_written(tmp_path: Path) -> None:
    trained = training(rounds=40, taking_part=0.8)
    history = write(tmp_path / "h", trained, selection=Selective(max_window=4))
    for r in trained.rounds:
        history.record(r)
        assert len(history.rounds) == r.index + 1
        assert history.rounds[-1].digests == history.rounds[r.index].digests
    read = History.open(tmp_path / "h")
    assert [entry.facts() for entry in history.rounds] == [entry.facts() for entry in read.rounds]
    assert [e.index for e in history.rounds[3:30:7]] == [3, 10, 17, 24]
    assert history.rounds[-40].index == 0
    assert history.contents.files() == read.contents.needed().keys() == history.contents.needed().keys()
    with pytest.raises(IndexError):
        history.rounds[40]
    history.close()
    assert [entry.facts() for entry in history.rounds] == [entry.facts() for entry in read.rounds]
