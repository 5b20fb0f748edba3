"""What is written can be read: every limit is asked before anything is on the disk."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcrab import (
    Answer,
    Compact,
    ConfigError,
    Every,
    Everything,
    FedcrabError,
    Field,
    History,
    Layout,
    RecordError,
    Rejection,
    Round,
    Selective,
    Updates,
    admit,
)
from fedcrab.admission import LONGEST_ID, LONGEST_TEXT, MOST_EXAMPLES, no_updates
from fedcrab.history.ledger_rows import LONGEST_JSON, MOST_NUMBERS
from fedcrab.history.limits import MOST_COORDINATES, MOST_POINTS, MOST_SEED
from fedcrab.history.snapshots import HEADER, header
from trials.layouts import LAYOUTS
from trials.trainings import training

MODEL = np.zeros(2, np.float32)
LARGEST = float(np.finfo(np.float32).max)


def create(path: Path, **others: Any) -> History:
    return History.create(path, others.pop("model", MODEL), **{"initial_loss": 1.0, **others})


def one_round(**others: Any) -> Round:
    updates = Updates(("a", "b"), np.array([[1, 0], [0, 1]], np.float32), np.array([1.0, 3.0]))
    fields = {"index": 0, "start": MODEL, "updates": updates, "aggregate": np.ones(2, np.float32)}
    return Round(**{**fields, "loss": 0.5, "divergence": 0.1, **others})


def tensors(count: int, length: int) -> Layout:
    """So many empty tensors with names of this length, after one that holds the model."""
    names = (f"{i:06}".ljust(length, "x") for i in range(count))
    return Layout((Field("model", (2,)), *(Field(name, (0,)) for name in names)))


def notes_that_just_fit() -> str:
    empty = json.loads(json.dumps(_charter_without_notes()))
    return "n" * (LONGEST_JSON - len(json.dumps(empty)))


def _charter_without_notes() -> dict[str, Any]:
    from fedcrab.history.chain import GENESIS
    from fedcrab.history.records import Settings

    charter = Settings(Layout.flat(2), Selective(), "fedavg", GENESIS, 1.0, 7, 1000, 256)
    return charter.to_table()


def wide_layout(room: int) -> Layout:
    """A layout whose header is as long as a snapshot's may be, give or take ``room`` bytes."""
    layout = tensors(1000, 900)
    missing = HEADER + room - len(header(layout))
    pad = missing // len(layout.fields)
    fields = [replace(f, name=f.name.ljust(900 + pad, "y")) if f.shape == (0,) else f for f in layout.fields]
    return Layout(tuple(fields))


# What just passes, and what just does not, of every limit that a reader has.
CREATED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "notes": ({"notes": notes_that_just_fit(), "seed": 7}, {"notes": notes_that_just_fit() + "n", "seed": 7}),
    "notes, a text": ({"notes": "a\n\x1b\tb\u2028\ud800é"}, {"notes": b"bytes"}),
    "tensors": ({"layout": tensors(5000, 100)}, {"layout": tensors(20_000, 100)}),
    "a tensor's name": ({"layout": tensors(1, LONGEST_TEXT)}, {"layout": tensors(1, LONGEST_TEXT + 1)}),
    "a printable name": (
        {"layout": Layout((Field("a é", (2,)),))},
        {"layout": Layout((Field("a\n", (2,)),))},
    ),
    "a reserved name": (
        {"layout": Layout((Field("metadata", (2,)),))},
        {"layout": Layout((Field("__metadata__", (2,)),))},
    ),
    "a tensor's size": (
        {"layout": Layout((Field("a", (2,)), Field("b", (0, MOST_NUMBERS))))},
        {"layout": Layout((Field("a", (2,)), Field("b", (0, MOST_NUMBERS + 1))))},
    ),
    "a tensor's shape": (
        {"layout": Layout((Field("a", (2, 1)),))},
        {"layout": Layout((Field("a", (np.int64(2),)),))},
    ),
    "a tensor's flags": (
        {"layout": Layout((Field("a", (2,), True, False),))},
        {"layout": Layout((Field("a", (2,), 1, False),))},
    ),
    "aggregation": ({"aggregation": "g" * LONGEST_TEXT}, {"aggregation": "g" * (LONGEST_TEXT + 1)}),
    "aggregation, printable": ({"aggregation": "a b"}, {"aggregation": "a\tb"}),
    "gram_limit": ({"gram_limit": 1}, {"gram_limit": 0}),
    "gram_limit, a number": ({"gram_limit": 2}, {"gram_limit": True}),
    "gram_limit, most": ({"gram_limit": MOST_POINTS - 10}, {"gram_limit": MOST_POINTS + 1}),
    "max_window, most": (
        {"selection": Selective(max_window=MOST_POINTS - 1000)},
        {"selection": Selective(max_window=MOST_POINTS)},
    ),
    "max_window of Compact": (
        {"selection": Compact(max_window=MOST_POINTS - 1000)},
        {"selection": Compact(max_window=MOST_POINTS)},
    ),
    "sketch_size": ({"sketch_size": MOST_COORDINATES}, {"sketch_size": MOST_COORDINATES + 1}),
    "sketch_size, a number": ({"sketch_size": 5}, {"sketch_size": np.int64(5)}),
    "seed": ({"seed": MOST_SEED}, {"seed": 10**5000}),
    "seed, a number": ({"seed": 0}, {"seed": False}),
    "initial_loss": ({"initial_loss": float("nan")}, {"initial_loss": 10**400}),
    "initial_loss, a number": ({"initial_loss": np.float32(3)}, {"initial_loss": "3"}),
    "selection": ({"selection": Every(3)}, {"selection": "everything"}),
    "model": ({"model": np.full_like(MODEL, LARGEST)}, {"model": MODEL + np.float32(np.inf)}),
    "model, float32": ({"model": MODEL}, {"model": [0.0, 0.0]}),
    "layout": ({"layout": Layout.flat(2)}, {"layout": ["model"]}),
}


@pytest.mark.parametrize("limit", CREATED)
def test_what_just_passes_is_read_back_and_what_does_not_creates_nothing(limit: str, tmp_path: Path) -> None:
    passes, fails = CREATED[limit]
    with pytest.raises(ConfigError) as refused:
        create(tmp_path / "parent" / "h", **fails)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400
    assert list(tmp_path.iterdir()) == []
    history = create(tmp_path / "h", **passes)
    history.record(one_round(start=passes.get("model", MODEL), aggregate=np.zeros(2, np.float32)))
    history.close()
    found = History.open(tmp_path / "h")
    assert History.verify(tmp_path / "h") == []
    for name in {"notes", "aggregation", "gram_limit", "sketch_size", "seed", "selection", "layout"} & set(
        passes
    ):
        assert getattr(found.charter, name) == passes[name]
    assert found.final_model().tolist() == np.asarray(passes.get("model", MODEL)).tolist()


def test_the_head_of_a_snapshot_is_as_long_as_may_be(tmp_path: Path) -> None:
    """Its limit is reached after that of the charter, which describes the same tensors; both are asked."""
    with pytest.raises(ConfigError, match="1001 tensors"):
        create(tmp_path / "h", layout=wide_layout(+2000))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", LAYOUTS)
def test_models_of_ordinary_depth(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    model = np.arange(layout.size, dtype=np.float32)
    notes = json.dumps({"dtypes": {f.name: "float32" for f in layout.fields}, "config": "x\n" * 5000})
    with create(tmp_path / "h", model=model, layout=layout, notes=notes) as history:
        updates = Updates(("a",), np.ones((1, layout.size), np.float32), np.ones(1))
        history.record(Round(0, model, updates, np.ones_like(model), 0.5, 0.1))
    found = History.open(tmp_path / "h")
    assert found.charter.notes == notes
    assert found.charter.layout == layout
    np.testing.assert_array_equal(found.final_model(), model + 1)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a row that is not finite": (
        {"updates": Updates(("a", "b"), np.array([[1, 0], [np.nan, 0]], np.float32), np.ones(2))},
        "client 'b' is in the aggregate but cannot be recorded: the update has values that are not finite",
    ),
    "an id with a space at its end": (
        {"updates": Updates(("a", "b "), np.ones((2, 2), np.float32), np.ones(2))},
        "client 'b ' is in the aggregate",
    ),
    "an id that is too long": (
        {"updates": Updates(("x" * (LONGEST_ID + 1),), np.ones((1, 2), np.float32), np.ones(1))},
        f"1 to {LONGEST_ID} characters",
    ),
    "a client twice": ({"updates": Updates(("a", "a"), np.ones((2, 2), np.float32), np.ones(2))}, "2 times"),
    "no examples": ({"updates": Updates(("a",), np.ones((1, 2), np.float32), np.zeros(1))}, "examples is 0"),
    "too many examples": (
        {"updates": Updates(("a",), np.ones((1, 2), np.float32), np.array([MOST_EXAMPLES + 1.0]))},
        "the number of examples is",
    ),
    "other rows": ({"updates": Updates(("a",), np.ones((1, 3), np.float32), np.ones(1))}, "3 numbers"),
    "a step by nobody": ({"updates": no_updates(2)}, "the aggregate must be zero"),
    "an overflow": (
        {"start": np.full_like(MODEL, LARGEST), "aggregate": np.full_like(MODEL, LARGEST)},
        "overflows float32",
    ),
    "a text for a loss": ({"loss": "low"}, "the loss must be a number"),
    "a huge loss": ({"loss": 10**400}, "the loss must be a number, got a whole number of 1329 bits"),
    "an array for a divergence": ({"divergence": np.ones(1)}, "the divergence must be a number"),
    "a huge index": ({"index": 10**5000}, "expected round 0"),
    "an index that is an array": ({"index": np.zeros(1)}, "expected round 0"),
    "true for an index": ({"index": False}, "expected round 0"),
    "a list for a vector": ({"start": [0.0, 0.0]}, "start must be 2 float32"),
    "words for rejections": ({"rejected": ("b",)}, "rejected must be"),
    "no updates": ({"updates": None}, "fedcrab.Updates"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_aggregated_is_recorded_or_refused(what: str, tmp_path: Path) -> None:
    fields, sentence = REFUSED[what]
    history = create(tmp_path / "h")
    before = sorted((tmp_path / "h").rglob("*"))
    with pytest.raises(RecordError) as refused:
        history.record(one_round(**fields))
    assert sentence in str(refused.value)
    assert str(refused.value).isprintable()
    assert sorted((tmp_path / "h").rglob("*")) == before
    history.record(one_round())  # and goes on
    history.close()
    assert History.verify(tmp_path / "h") == []


def test_nobody_is_nobody_however_it_is_written(tmp_path: Path) -> None:
    with create(tmp_path / "h", selection=Everything()) as history:
        history.record(one_round(updates=Updates.of({}), aggregate=MODEL))
    assert History.verify(tmp_path / "h") == []
    assert History.open(tmp_path / "h").updates(0).vectors.shape == (0, 2)


def test_numbers_of_other_kinds_are_numbers(tmp_path: Path) -> None:
    with create(tmp_path / "h") as history:
        history.record(one_round(index=np.int64(0), loss=np.float32(0.5), divergence=np.array(1)))
    entry = History.open(tmp_path / "h").rounds[0]
    assert (entry.index, entry.loss, entry.divergence) == (0, 0.5, 1.0)


def test_a_sketched_round_that_no_ledger_takes_is_refused(tmp_path: Path) -> None:
    clients = tuple(f"{i:03}" for i in range(3))
    with create(tmp_path / "h", gram_limit=2, sketch_size=MOST_COORDINATES // 3) as history:
        updates = Updates(clients, np.ones((3, 2), np.float32), np.ones(3))
        with pytest.raises(RecordError, match="smaller sketch_size"):
            history.record(one_round(updates=updates))


CHANGES: dict[str, Callable[[Round], Round]] = {
    "start": lambda r: replace(r, start=r.start + 1, aggregate=r.aggregate - 1),
    "aggregate": lambda r: replace(r, aggregate=r.aggregate + 1),
    "loss": lambda r: replace(r, loss=r.loss / 2),
    "divergence": lambda r: replace(r, divergence=float("nan")),
    "weights": lambda r: replace(r, updates=replace(r.updates, weights=r.updates.weights * 2)),
    "updates": lambda r: replace(r, updates=replace(r.updates, vectors=r.updates.vectors[::-1].copy())),
    "clients": lambda r: replace(r, updates=replace(r.updates, clients=("x", *r.updates.clients[1:]))),
    "rejected": lambda r: replace(r, rejected=(Rejection("z", "was late"),)),
}


@pytest.mark.parametrize("selection", [Selective(), Everything()], ids=["selective", "everything"])
@pytest.mark.parametrize("what", CHANGES)
def test_the_last_round_again_is_accepted_only_if_everything_is_the_same(
    what: str, selection: Any, tmp_path: Path
) -> None:
    trained = training(rounds=2)
    history = create(tmp_path / "h", model=trained.initial_model, selection=selection)
    for r in trained.rounds:
        history.record(r)
    head = history.contents.head
    history.record(trained.rounds[-1])
    with pytest.raises(
        RecordError, match=f"round 1 is already recorded, with different .*{what}.*; the next round is 2"
    ):
        history.record(CHANGES[what](trained.rounds[-1]))
    history.release()
    history = History.resume(tmp_path / "h")
    history.record(trained.rounds[-1])
    assert history.contents.head == head
    history.close()


def test_a_step_that_is_lost_in_the_model_is_still_another_step(tmp_path: Path) -> None:
    start = np.full(2, 1e30, np.float32)
    with create(tmp_path / "h", model=start) as history:
        history.record(one_round(start=start, aggregate=np.array([1, 0], np.float32)))
        with pytest.raises(RecordError, match="different aggregate"):
            history.record(one_round(start=start, aggregate=np.array([0, 1], np.float32)))


@pytest.mark.parametrize("name", ["loss", "divergence"])
def test_a_negative_zero_is_read_back_as_what_was_hashed(tmp_path: Path, name: str) -> None:
    with create(tmp_path / "h") as history:
        history.record(one_round(**{name: -0.0}))
    assert History.verify(tmp_path / "h") == []


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(
        [10**400, -(10**5000), 2**63, np.int64(3), np.uint8(1), np.float64("nan"), np.float32(2)]
    ),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.complex_numbers(),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=1), st.none(), max_size=1),
    st.sampled_from(
        [np.zeros(2), np.zeros((2, 2), np.float32), np.array(1.0), np.array(["a"]), np.array([None])]
    ),
    st.sampled_from(
        [MODEL, np.full(2, LARGEST, np.float32), np.full(2, np.nan, np.float32), object(), {1: 2}]
    ),
)


@settings(deadline=None)
@given(client=ODD, round=ODD, update=ODD, examples=ODD)
def test_no_answer_can_raise(client: Any, round: Any, update: Any, examples: Any) -> None:
    for answer in (
        Answer(client, 0, MODEL, 1),
        Answer("b", round, MODEL, 1),
        Answer("b", 0, update, examples),
        Answer(client, round, update, examples),
    ):
        updates, rejected = admit(
            [Answer("a", 0, MODEL, 7), answer, answer], round=0, size=2, asked={"a", "b"}
        )
        twice = isinstance(answer.client, str) and answer.client == "a"  # then a is not believed either
        assert updates.clients == (() if twice else ("a",))
        assert all(r.client.isprintable() and r.reason.isprintable() for r in rejected)


@settings(deadline=None)
@given(data=st.data())
def test_no_round_can_raise_anything_but_a_sentence(data: st.DataObject, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    history = History.resume(path) if path.exists() else create(path)
    next_round, said = one_round(index=len(history.rounds)), ""
    name = data.draw(
        st.sampled_from(["index", "start", "updates", "aggregate", "loss", "divergence", "rejected"])
    )
    try:
        value = data.draw(ODD)
        if name == "updates" and data.draw(st.booleans()):
            value = Updates(*(data.draw(ODD) for _ in range(3)))
        if name == "rejected" and data.draw(st.booleans()):
            value = (Rejection(data.draw(ODD), data.draw(ODD)),)
        history.record(replace(next_round, **{name: value}))
    except FedcrabError as error:
        said = str(error)
    finally:
        history.release()
    assert said.isprintable()
    assert History.verify(path) == []
