"""A certificate in which one field was changed: verify names that field, whichever it is."""

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedcrab import DamagedError, HistoryError
from fedcrab.certificate import read_certificate, verify_certificate, write_certificate
from fedcrab.certificate.document import canonical, digests, signed
from trials.recovered import certified


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    return certified(tmp_path_factory.mktemp("certified"))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_keys(tmp_path_factory.mktemp("keys"))


def make_keys(place: Path) -> tuple[Path, Path]:
    key, private, public = Ed25519PrivateKey.generate(), place / "private.pem", place / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def leaves(table: object, path: tuple = ()) -> Iterator[tuple]:
    """The place of every value that holds no other."""
    inner = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    below = [leaf for key, value in inner for leaf in leaves(value, (*path, key))]
    yield from below or [path]


def changes(value: object) -> list[object]:
    """Other values of the same kind, as near as can be, and of other kinds."""
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, float):
        return [value * (1 + 1e-8) + 1e-12, None]
    if isinstance(value, int):
        return [value + 1, float(value)]
    if isinstance(value, str):
        return [value[:-1] + chr(ord(value[-1]) ^ 1) if value else "x"]
    return [0.5, "x"] if value is None else [None]


def changed(table: dict, path: tuple, value: object) -> dict:
    other = copy.deepcopy(table)
    inner = other
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return other


def name_of(path: tuple) -> str:
    return ".".join(str(key) for key in path if isinstance(key, str))


def named(problems: list[str], path: tuple, file: Path) -> bool:
    """Whether a problem's first words are the field's name, or that of the signature it is part of."""
    fields = [p.removeprefix(f"{file}: ").split(":")[0] for p in problems]
    if path == ("format",):  # that of an older format: its terms are others, and those are named
        return any(f == "format" or f.startswith("terms.distance.") for f in fields)
    return name_of(path) in fields or (
        path[0] == "signature" and any(f.startswith("signature") for f in fields)
    )


@pytest.mark.parametrize("every", [pytest.param(True, marks=pytest.mark.slow), False])
def test_every_field_changed_is_named(every: bool, whole: tuple[Path, dict], keys: tuple[Path, Path]) -> None:
    """Each to the nearest other value, and every third to one of another kind; the slow trial does both."""
    path, table = whole
    table = signed(table, keys[0])
    places = list(leaves(table))
    assert len(places) > 150
    missed = []
    for number, place in enumerate(places):
        value = table
        for key in place:
            value = value[key]
        for other in changes(value)[: None if every or number % 3 == 0 else 1]:
            path.write_bytes(canonical(changed(table, place, other)))
            problems = verify_certificate(path, key=keys[1])
            if not named(problems, place, path):
                missed.append((place, value, other, problems))
    write_certificate(path, whole[1])
    assert missed == []


def test_a_field_left_out_or_added_is_named(whole: tuple[Path, dict]) -> None:
    path, table = whole
    for section in ("subject", "terms", "inputs", "inputs_sha256"):
        for name in table[section]:
            other = copy.deepcopy(table)
            del other[section][name]
            write_certificate(path, other)
            problems = " ".join(verify_certificate(path))
            assert f"{section}.{name}" in problems or (section, name) == ("inputs_sha256", "all"), (
                name,
                problems,
            )
        write_certificate(path, changed(table, (section, "more"), 1))
        assert "more" in " ".join(verify_certificate(path))
    for name in table:
        write_certificate(path, {key: value for key, value in table.items() if key != name})
        assert name == "signature" or name in " ".join(verify_certificate(path))
    write_certificate(path, table)
    assert verify_certificate(path) == []


def test_attackers_supposed_beyond_those_named_are_bound_to_it(tmp_path: Path) -> None:
    path, table = certified(tmp_path, unfound=1)
    assert table["inputs"]["unfound"] == 1
    assert verify_certificate(path) == []
    for other in (2, 0, True, 1.0, "1", 10**400):
        inputs = {**table["inputs"], "unfound": other}
        write_certificate(path, {**table, "inputs": inputs})
        assert any("inputs.unfound" in p for p in verify_certificate(path))
        write_certificate(path, {**table, "inputs": inputs, "inputs_sha256": digests(inputs)})
        assert verify_certificate(path) != []
    none = {name: value for name, value in table["inputs"].items() if name != "unfound"}
    write_certificate(path, {**table, "inputs": none, "inputs_sha256": digests(none)})
    assert any("subject.plan" in p for p in verify_certificate(path))


def test_what_it_is_about_is_named_where_it_changed(tmp_path: Path) -> None:
    path, _ = certified(tmp_path)
    assert verify_certificate(path) == []
    model = path.parent / "model.safetensors"
    shutil.copy(path.parent.parent / "retrain" / "model.safetensors", model)
    assert any("subject.recovered_model" in p for p in verify_certificate(path))
    path, _ = certified(tmp_path / "other")
    step = sorted((path.parent / "steps").iterdir())[-1]
    told = json.loads(step.read_text())
    told["step"]["lengths"][0] *= 1.01
    step.write_text(json.dumps(told))
    assert any("subject.steps" in p for p in verify_certificate(path))


def test_another_history_is_named(tmp_path: Path) -> None:
    path, _ = certified(tmp_path)
    other, _ = certified(tmp_path / "other")
    folder = other.parent.parent.parent
    shutil.rmtree(folder / "h")
    from trials.convex import random_training

    random_training(5, folder / "h")
    assert any("subject.history" in p for p in verify_certificate(other))
    assert verify_certificate(path, history=tmp_path / "h") == []
    with pytest.raises(HistoryError, match="--history"):
        verify_certificate(path, history=tmp_path / "nowhere")


def test_signatures(whole: tuple[Path, dict], keys: tuple[Path, Path], tmp_path: Path) -> None:
    path, table = whole
    write_certificate(path, signed(table, keys[0]))
    assert verify_certificate(path) == []
    assert verify_certificate(path, key=keys[1]) == []
    assert "public_key" in verify_certificate(path, key=make_keys(tmp_path)[1])[0]
    write_certificate(path, table)
    assert "signature: missing" in verify_certificate(path, key=keys[1])[0]
    forged = signed(changed(table, ("conclusion", "value"), 0.0), make_keys(tmp_path)[0])
    write_certificate(path, forged)
    assert "conclusion.value" in verify_certificate(path)[0]
    write_certificate(path, table)


@pytest.mark.parametrize(
    "content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_key_that_is_none_is_one_sentence(whole: tuple[Path, dict], tmp_path: Path, content: bytes) -> None:
    from fedcrab import FedcrabError

    (tmp_path / "key").write_bytes(content)
    with pytest.raises(FedcrabError, match="Ed25519 private key"):
        signed(whole[1], tmp_path / "key")
    with pytest.raises(FedcrabError, match="missing"):
        signed(whole[1], tmp_path / "nowhere")


def test_the_file_is_canonical(whole: tuple[Path, dict]) -> None:
    path, table = whole
    content = path.read_bytes()
    assert content == canonical(table) == canonical(read_certificate(path))
    for other in (content + b"\n", content.replace(b'": ', b'":'), json.dumps(table).encode()):
        path.write_bytes(other)
        with pytest.raises(DamagedError, match="canonical"):
            verify_certificate(path)
    path.write_bytes(content)
