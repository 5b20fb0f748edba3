"""The ways in which malicious clients can be named."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcrab import ConfigError, History
from fedcrab.admission import bad_id
from fedcrab.rollback.malicious import listed, parse_malicious, quoted, with_since
from rollback.test_against_naive import record
from trials.trainings import training

NAMES = ("1@1", "2", "3", "alice@b.org")
X509 = 'CN=site 3,OU=R&D,O="Acme, Inc.",C=DE'


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        (["3,7"], "", ["3", "7"]),
        (["3", "7,3"], "", ["3", "7"]),
        ([" 3 , a b,"], "", ["3", "a b"]),
        (['"CN=a,O=b",7', 'c"d'], "", ["CN=a,O=b", "7", 'c"d']),
        (['7, "a ""b"", c" ,8'], "", ["7", 'a "b", c', "8"]),
        (['"-"', '"@file"', "a@b.org"], "", ["-", "@file", "a@b.org"]),
        ([quoted(X509)], "", [X509]),
        (["-"], "3,7\n", ["3", "7"]),
        (["-", "9"], '3\n"4,5"\n\n', ["3", "4,5", "9"]),
        (["-"], json.dumps({"suspects": ["3", X509]}), ["3", X509]),
        (["-"], "Clients\n│ 3 │ 5.1 │\nSuspects: 3, 7\n! a note, of sorts\n", ["3", "7"]),
        (["-"], f"Suspects: 3, {quoted(X509)}\n", ["3", X509]),
    ],
)
def test_names(options: list[str], given: str, expected: list[str]) -> None:
    assert parse_malicious(options, io.StringIO(given)) == expected


@pytest.mark.parametrize("text", ["3\n7\n", "\ufeff3,7", '{"suspects": ["3", "7"]}', "Suspects: 3, 7\n"])
def test_names_from_a_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "ids, of sorts.txt"
    file.write_text(text, encoding="utf-8")
    assert parse_malicious([f"@{file}", "9"], io.StringIO()) == ["3", "7", "9"]


@given(st.lists(st.text(min_size=1).filter(lambda text: not bad_id(text)), min_size=1, unique=True))
def test_every_id_that_is_good_can_be_named(ids: list[str]) -> None:
    assert listed(", ".join(map(quoted, ids))) == ids
    assert parse_malicious([",".join(map(quoted, ids))], io.StringIO()) == ids


@pytest.mark.parametrize(
    ("options", "given", "why"),
    [
        ([","], "", "names no client"),
        ([], "", "names no client"),
        (["-"], "", "names no client"),
        (["-"], '{"suspects": []}', "no sign of attack"),
        (["-"], "No sign of attack (ledger, 20 rounds)\n", "no sign of attack"),
        (["-"], '{"suspects": [3]}', "not the JSON"),
        (["-"], '{"clients": []}', "not the JSON"),
        (["-"], "{broken", "not the JSON"),
        (['"a,b'], "", "is not closed"),
        (['"a"b'], "", "is not closed"),
        (["@nowhere/ids"], "", "nowhere/ids: cannot be read"),
        (["@"], "", "cannot be read"),
    ],
)
def test_nobody_is_named(options: list[str], given: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_malicious(options, io.StringIO(given))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ids").write_bytes(b"\xff\xfe3")
    with pytest.raises(ConfigError, match="invalid UTF-8"):
        parse_malicious([f"@{tmp_path / 'ids'}"], io.StringIO())


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Clients 0 to 3, and one whose id looks like a round of client 1."""
    made = training(rounds=3, clients=4)
    rounds = [replace(r, updates=replace(r.updates, clients=NAMES)) for r in made.rounds]
    return record(replace(made, rounds=rounds), tmp_path_factory.mktemp("named") / "h")


@pytest.mark.parametrize(
    ("ids", "since", "expected"),
    [
        (["2"], [], {"2": 0}),
        (["2@1", "3"], [], {"2": 1, "3": 0}),
        (["2@1", "3"], ["2"], {"2": 1, "3": 2}),
        (["2", "3"], ["1", "3@2"], {"2": 1, "3": 2}),
        (["alice@b.org"], ["1"], {"alice@b.org": 1}),
        (["alice@b.org@2"], [], {"alice@b.org": 2}),
        (["1@1"], [], {"1@1": 0}),  # an id of the history, not client 1 from round 1 on
        (["1@1@2"], ["1@1@1"], {"1@1": 1}),
    ],
)
def test_since_when(ids: list[str], since: list[str], expected: dict[str, int], history: History) -> None:
    assert with_since(ids, since, history, {}) == expected
    assert with_since(ids, since, history, {"9": 5}) == {"9": 5, **expected}


@pytest.mark.parametrize(
    ("since", "why"),
    [(["x"], "takes a round"), (["1", "2"], "two rounds"), (["3@1"], "3 is not named"), (["-1"], "takes a")],
)
def test_since_when_it_cannot_be(since: list[str], why: str, history: History) -> None:
    with pytest.raises(ConfigError, match=why):
        with_since(["2"], since, history, {})


def test_named_again_without_a_round_every_round_counts(history: History) -> None:
    assert with_since(["2"], [], history, {"2": 1}) == {"2": 0}
