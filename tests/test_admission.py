"""Who is let into a round, and what is written down of the others."""

import numpy as np
import pytest

from fedcrab import Answer, RecordError, Updates, admit
from fedcrab.admission import screen_updates

GOOD = np.array([1, 2], np.float32)
TWINS = [
    "caf\u0065\u0301",
    "a\u200bb",
    "a\u00adb",
    "a\u3164",
    "a\ufe0f",
    "a\u2800b",
    "a  b",
    "a\u00a0b",
    "\u202ea",
]
HOSTILE = {
    "not a number": (np.array([1, np.nan], np.float32), 5, "not finite"),
    "infinite": (np.array([1, np.inf], np.float32), 5, "not finite"),
    "short": (np.ones(1, np.float32), 5, "shape"),
    "long": (np.ones(3, np.float32), 5, "shape"),
    "matrix": (np.ones((2, 1), np.float32), 5, "shape"),
    "double": (np.ones(2), 5, "float32"),
    "text": ("hello", 5, "float32"),
    "object": (np.array([1, None]), 5, "float32"),
    "nothing": (None, 5, "float32"),
    "no examples": (GOOD, 0, "examples"),
    "negative": (GOOD, -1, "examples"),
    "absurd": (GOOD, 10**12, "examples"),
    "nan examples": (GOOD, float("nan"), "examples"),
    "infinite examples": (GOOD, float("inf"), "examples"),
    "word examples": (GOOD, "many", "examples"),
    "true": (GOOD, True, "examples"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_left_out_and_the_round_goes_on(name: str) -> None:
    update, examples, word = HOSTILE[name]
    answers = [Answer("a", 3, GOOD, 7), Answer("b", 3, update, examples)]
    updates, rejected = admit(answers, round=3, size=2)
    assert updates.clients == ("a",)
    assert updates.weights.tolist() == [7]
    assert [r.client for r in rejected] == ["b"]
    assert word in rejected[0].reason


def test_duplicates_strangers_and_late_answers_are_left_out() -> None:
    answers = [
        Answer("a", 3, GOOD, 1),
        Answer("b", 3, GOOD, 1),
        Answer("b", 3, GOOD, 1),
        Answer("c", 2, GOOD, 1),
        Answer("z", 3, GOOD, 1),
    ]
    updates, rejected = admit(answers, round=3, size=2, asked={"a", "b", "c"})
    assert updates.clients == ("a",)
    assert {r.client: r.reason for r in rejected} == {
        "b": "answered 2 times in one round",
        "c": "answered round 2 in place of round 3",
        "z": "was not asked in this round",
    }


@pytest.mark.parametrize("name", ["", " a", "a ", "\x1b[31m", "x" * 201, "new\nline", *TWINS])
def test_an_id_that_cannot_be_shown_is_written_down_harmlessly(name: str) -> None:
    updates, rejected = admit([Answer(name, 0, GOOD, 1)], round=0, size=2)
    assert updates.clients == ()
    assert updates.vectors.shape == (0, 2)
    assert rejected[0].client.isprintable()
    assert len(rejected[0].client) <= 200


@pytest.mark.parametrize(
    "name",
    [
        "CN=site 3,OU=R&D,O=Acme,C=DE",
        'say "hi"',
        "a,b",
        ",",
        "caf\u00e9",
        "東京",
        "-",
        "'; drop",
        "a@b.org",
        "@7",
    ],
)
def test_any_printable_id_is_good(name: str) -> None:
    updates, rejected = admit([Answer(name, 0, GOOD, 1)], round=0, size=2)
    assert (updates.clients, rejected) == ((name,), ())


def test_screen_takes_out_bad_rows_of_updates() -> None:
    rows = np.array([[1, 2], [np.nan, 0], [3, 4], [5, 6]], np.float32)
    updates, rejected = screen_updates(Updates(("a", "b", "c", "d"), rows, np.array([1, 1, 0, 2.0])), size=2)
    assert updates.clients == ("a", "d")
    assert [r.client for r in rejected] == ["b", "c"]
    with pytest.raises(RecordError, match="2 numbers, but the model has 5"):
        screen_updates(updates, size=5)


def test_updates_are_sorted_by_client() -> None:
    updates = Updates(("b", "a"), np.array([[1], [2]], np.float32), np.array([3.0, 4.0]))
    assert updates.clients == ("a", "b")
    assert updates.vectors.tolist() == [[2], [1]]
    assert updates.weights.tolist() == [4, 3]
    with pytest.raises(RecordError, match="one row and one weight"):
        Updates(("a",), np.zeros((2, 1)), np.zeros(1))
