"""The commands certify and verify over a recovery on disk."""

import json
import shutil
from pathlib import Path

import pytest

from certificate.test_tampering import make_keys
from fedcrab.certificate import read_certificate
from fedcrab.cli.certify import certify_recovery
from trials.command import fedcrab
from trials.recovered import recovered


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("commands")
    recovered(place)
    make_keys(place)
    return place


def test_certify_sign_and_verify(place: Path) -> None:
    known = ["--assume", "convexity=0", "--assume", "smoothness=4", "--assume", "rate=0.1"]
    done = fedcrab("certify", "out/crab-hardened", *known, "--key", "private.pem", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "Proved: the recovered model is at most" in done.stdout
    table = read_certificate(place / "out" / "crab-hardened" / "certificate.json")
    assert table["inputs"]["assumptions"]["rate"] == 0.1
    assert table["subject"]["retrained_model"] is not None
    checked = fedcrab(
        "verify", "out/crab-hardened/certificate.json", "--key", "public.pem", "--json", cwd=place
    )
    assert json.loads(checked.stdout) == {"ok": True, "problems": []}
    assert fedcrab("verify", "out/crab-hardened", cwd=place).returncode == 0


def test_assumptions_stay_until_they_are_taken_back(place: Path) -> None:
    shutil.copytree(place / "out", place / "again" / "out")
    folder = "again/out/crab-hardened"
    (place / folder / "certificate.json").unlink(missing_ok=True)
    first = json.loads(fedcrab("certify", folder, "--assume", "expansion=1", "--json", cwd=place).stdout)
    second = json.loads(fedcrab("certify", folder, "--json", cwd=place).stdout)
    assert first == second
    third = json.loads(fedcrab("certify", folder, "--assume", "expansion=null", "--json", cwd=place).stdout)
    assert third["terms"]["poison.whole"]["value"] is None


def declared(folder: Path) -> dict:
    table = read_certificate(folder / "certificate.json")["inputs"]["assumptions"]
    return {name: value for name, value in table.items() if value not in (None, False)}


def test_what_somebody_else_planted_is_not_signed(place: Path) -> None:
    """Unsigned, or signed by a stranger: an assumption is taken over only from what the same key signed."""
    shutil.copytree(place / "out", place / "planted" / "out")
    folder, stranger = place / "planted" / "out" / "crab-hardened", place / "stranger"
    stranger.mkdir()
    make_keys(stranger)
    mine, known = ["--key", "private.pem"], ["--assume", "expansion=1"]
    for planting in ([], ["--key", "stranger/private.pem"]):
        (folder / "certificate.json").unlink(missing_ok=True)
        assert fedcrab("certify", str(folder), *known, *planting, cwd=place).returncode == 0
        told = fedcrab("certify", str(folder), *mine, cwd=place).stderr
        assert "Declared: nothing" in told
        assert "repeat with --assume expansion=1" in told
        assert declared(folder) == {}
    assert fedcrab("certify", str(folder), *known, *mine, cwd=place).returncode == 0
    told = fedcrab("certify", str(folder), "--assume", "residual=2", *mine, cwd=place).stderr
    assert "Declared: expansion=1, residual=2" in told
    assert declared(folder) == {"expansion": 1, "residual": 2}


def test_what_is_declared_is_told_before_it_is_signed(place: Path) -> None:
    shutil.copytree(place / "out", place / "told" / "out")
    folder = place / "told" / "out" / "crab-hardened"
    (folder / "certificate.json").unlink(missing_ok=True)
    told = []
    certify_recovery(
        folder,
        assume=["rate=0.1"],
        key=place / "private.pem",
        tell=lambda line: told.append((line, (folder / "certificate.json").exists())),
    )
    assert not any(written for _, written in told)
    assert told[0][0] == "Declared: rate=0.1"
    assert "method=crab-hardened" in told[1][0]
    assert "malicious=" in told[1][0]


def test_a_changed_certificate_is_named(place: Path) -> None:
    shutil.copytree(place / "out", place / "changed" / "out")
    folder = place / "changed" / "out" / "crab-hardened"
    assert fedcrab("certify", str(folder), cwd=place).returncode == 0
    path = folder / "certificate.json"
    path.write_text(path.read_text().replace('"by": "distance.', '"by": "distances.'))
    done = fedcrab("verify", str(path), cwd=place)
    assert done.returncode == 2
    assert "conclusion.by" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    "arguments",
    [
        "certify nowhere",
        "certify h",
        "certify out",
        "certify out/crab-hardened --assume speed=3",
        "certify out/crab-hardened --assume rate",
        "certify out/crab-hardened --assume rate=fast",
        "certify out/crab-hardened --assume rate=-1",
        "certify out/crab-hardened --assume rate=0.1 --assume most_steps=1 --assume gradient=1e-9",
        "certify out/crab-hardened --assume gradient=5 --assume rate=null",
        "certify out/crab-hardened --epsilon 1",
        "certify out/crab-hardened --epsilon 0 --delta 0.1",
        "certify out/crab-hardened --key public.pem",
        "certify out/crab-hardened --key nowhere",
        "certify out/crab-hardened --history nowhere",
        "certify out/crab-hardened --retrained nowhere",
        "verify private.pem",
        "verify h/ledger.sqlite",
        "verify nowhere",
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments: str, place: Path) -> None:
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    done = fedcrab(*arguments.split(), cwd=place)
    assert done.returncode == 2
    assert done.stderr.startswith("fedcrab: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
