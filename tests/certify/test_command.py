"""The commands certify and verify, each a real process, over a recovery on disk."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from certify.test_tampering import make_keys
from fedcrab.certify import read_certificate
from fedcrab.cli import main
from trials.recovered import recovered


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("commands")
    recovered(place)
    make_keys(place)
    return place


def fedcrab(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedcrab", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


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
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["fedcrab", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("fedcrab: ")
    assert len(said.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
