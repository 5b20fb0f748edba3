"""Certificates from strangers: one sentence, whatever is in them."""

import json
import random
from pathlib import Path

import pytest

from fedcrab import FedcrabError
from fedcrab.certificate import verify_certificate
from fedcrab.certificate.document import LARGEST, canonical, digests
from trials.recovered import certified


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path, _ = certified(tmp_path_factory.mktemp("certified"))
    return path, path.read_bytes()


def refused(path: Path, content: bytes) -> None:
    """Refused with an error of ours, or with problems."""
    assert told(path, content)


def told(path: Path, content: bytes) -> list[str]:
    """What verify says of it: sentences that can be printed, and no other kind of error."""
    path.write_bytes(content)
    try:
        problems = verify_certificate(path)
    except FedcrabError as error:
        problems = [str(error)]
    for problem in problems:
        assert problem.isprintable()
        assert len(problem) < 1000
    return problems


DOCUMENTS = {
    "nothing": b"",
    "no JSON": b"{",
    "another kind": b"[]\n",
    "an empty table": canonical({}),
    "NaN": b'{\n "format": NaN\n}\n',
    "an infinite number": b'{\n "format": 1e999\n}\n',
    "-Infinity": b'{"format": -Infinity}',
    "twice": b'{"format": 1, "format": 2}',
    "deep": b"[" * 100_000,
    "deep tables": b'{"a":' * 900 + b"1" + b"}" * 900,
    "too long a number": b'{"format": ' + b"9" * 100_000 + b"}",
    "not ASCII": '{"format": "ä"}'.encode(),
    "not text": bytes(range(256)),
    "too large": b" " * (LARGEST + 1),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_that_are_none(whole: tuple[Path, bytes], name: str) -> None:
    refused(whole[0], DOCUMENTS[name])


VALUES = [
    None,
    True,
    -1,
    10**400,
    1e308,
    "",
    "x" * 10_000,
    "\ud800\x1b[31m",
    [],
    [[]],
    {},
    {"a": 1},
    [None] * 1000,
]


@pytest.mark.parametrize("apart", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_every_value_exchanged_for_strange_ones(apart: int, whole: tuple[Path, bytes]) -> None:
    """With digests that fit, so that the values themselves are met; every third of them, or all if slow.

    An input that can be is another certificate, and may hold: some terms do not depend on every input.
    """
    path, content = whole
    table = json.loads(content)
    for section in ("inputs", "subject", "terms", "estimates", "conclusion", "signature"):
        for place, name in enumerate(table[section] or {}):
            for value in VALUES[place % apart :: apart] if section == "inputs" else VALUES[place % 4 :: 4]:
                other = json.loads(content)
                other[section][name] = value
                other["inputs_sha256"] = digests(other["inputs"])
                if other != table:
                    assert told(path, canonical(other)) or section == "inputs"


def test_every_assumption_exchanged_for_strange_ones(whole: tuple[Path, bytes]) -> None:
    path, content = whole
    for inner in ("assumptions", "crab", "noise"):
        for name in json.loads(content)["inputs"][inner]:
            for value in [v for v in VALUES if v is not None]:
                other = json.loads(content)
                other["inputs"][inner][name] = value
                other["inputs_sha256"] = digests(other["inputs"])
                assert isinstance(told(path, canonical(other)), list)


def mutated(rng: random.Random, content: bytes) -> bytes:
    """Some bytes changed, moved, doubled or cut out."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(data)), rng.randint(1, 40)
        kind = rng.randrange(4)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at : at + length]
        elif kind == 2:
            data[at:at] = data[at : at + length]
        else:
            data[at : at + length] = rng.choice([b"1e999", b"null", b"-1", b'"', b"{", b"9" * 30])
    return bytes(data)


def fuzz(whole: tuple[Path, bytes], seeds: range) -> None:
    path, content = whole
    for seed in seeds:
        other = mutated(random.Random(seed), content)
        if other != content:
            refused(path, other)


def test_fuzzed(whole: tuple[Path, bytes]) -> None:
    fuzz(whole, range(300))


@pytest.mark.slow
def test_fuzzed_for_long(whole: tuple[Path, bytes]) -> None:
    fuzz(whole, range(1000, 21_000))


def test_steps_and_summaries_that_are_none(tmp_path: Path) -> None:
    path, _ = certified(tmp_path)
    step = sorted((path.parent / "steps").iterdir())[0]
    good = json.loads(step.read_text())
    for name in ("round", "clients", "examples", "lengths", "renewed"):
        for value in (None, "x", [None], [-1], [1e999], [1, 2, 3, 4, 5, 6, 7, 8, 9], {"a": 1}):
            step.write_text(json.dumps({**good, "step": {**good["step"], name: value}}))
            with pytest.raises(FedcrabError):
                verify_certificate(path)
    step.write_text(json.dumps(good))
    assert verify_certificate(path) == []
    for content in ("", "[]", "{}", '{"history": 3}', '{"history": "\\u0000"}', '{"history": "nowhere"}'):
        (path.parent / "summary.json").write_text(content)
        with pytest.raises(FedcrabError):
            verify_certificate(path)
