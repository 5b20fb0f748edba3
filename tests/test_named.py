"""The ways in which malicious clients can be named."""

import io
import json

import pytest

from fedcrab import ConfigError
from fedcrab.named import named


@pytest.mark.parametrize(
    ("option", "given", "expected"),
    [
        ("3,7", "", ["3", "7"]),
        (" 3 , a b,", "", ["3", "a b"]),
        ("-", "3,7\n", ["3", "7"]),
        ("-", "3\n7\n\n", ["3", "7"]),
        ("-", json.dumps({"suspects": ["3", "7"]}), ["3", "7"]),
        ("-", "Clients\n│ 3 │ 5.1 │\nSuspects: 3, 7\n! a note, of sorts\n", ["3", "7"]),
    ],
)
def test_names(option: str, given: str, expected: list[str]) -> None:
    assert named(option, io.StringIO(given)) == expected


@pytest.mark.parametrize(
    ("option", "given", "why"),
    [
        (",", "", "names no client"),
        ("-", "", "names no client"),
        ("-", '{"suspects": []}', "no sign of attack"),
        ("-", "No sign of attack (ledger, 20 rounds)\n", "no sign of attack"),
        ("-", '{"suspects": [3]}', "not the JSON"),
        ("-", '{"clients": []}', "not the JSON"),
        ("-", "{broken", "not the JSON"),
    ],
)
def test_nobody_is_named(option: str, given: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        named(option, io.StringIO(given))
