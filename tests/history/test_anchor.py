"""Whoever can write the directory can rewrite the chain; a head kept outside, or a signature, shows it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from fedcrab import Compact, ConfigError, DamagedError, Everything, History, Round, Selective, Updates
from fedcrab.history.consistency import least_residual, round_problems
from fedcrab.history.gram import measure
from fedcrab.history.participants import Participants
from fedcrab.history.records import RoundRecord
from fedcrab.history.selection import Selection
from fedcrab.history.verify import seal, verify
from fedcrab.vectors import InMemory
from torture import forge, recording
from trials.command import fedcrab
from trials.trainings import Training, training, trainings

cryptography = pytest.importorskip("cryptography")
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: E402
from cryptography.hazmat.primitives.serialization import (  # noqa: E402
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


def make_key(place: Path, name: str) -> tuple[Path, Path]:
    key = Ed25519PrivateKey.generate()
    private, public = place / f"{name}.pem", place / f"{name}.pub.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    recording.record(tmp_path / "h", "selective")
    return tmp_path / "h"


def rewrite(path: Path) -> str:
    """Another loss in round 3, and every hash made to fit; the head after it."""
    ledger = (path / "ledger.sqlite").read_bytes()
    edit = "UPDATE rounds SET loss = 0.7905 WHERE round = 3"
    content, entries, digest = forge.edited(ledger, lambda c: c.execute(edit))
    forge.put_ledger(path, content, entries, digest)
    return digest


def test_a_rewritten_chain_is_whole_but_for_an_anchor_outside(closed: Path) -> None:
    head = History.open(closed).contents.head
    assert History.verify(closed, head=head) == []
    assert rewrite(closed) != head
    assert History.verify(closed) == []
    (problem,) = History.verify(closed, head=head)
    assert f"the head {head} is not in its chain" in problem


def test_a_head_noted_while_training_covers_the_rounds_before_it(tmp_path: Path) -> None:
    history, noted = recording.create(tmp_path / "h", "selective"), []
    for each in recording.rounds():
        history.record(each)
        noted.append(history.contents.head)
    assert [verify(tmp_path / "h", head=h).anchored for h in noted] == list(range(1, 9))
    history.close()
    for rounds, head in enumerate(noted, 1):
        verdict = verify(tmp_path / "h", head=head.upper())
        assert (verdict.problems, verdict.anchored) == ([], rounds)
    rewrite(tmp_path / "h")
    found = [not verify(tmp_path / "h", head=head).problems for head in noted]
    assert found == [True] * 3 + [False] * 5  # round 3 and all after it


@pytest.mark.parametrize("head", ["", "abc", "g" * 64, "a" * 65])
def test_a_head_that_cannot_be_one_is_refused(head: str, closed: Path) -> None:
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        History.verify(closed, head=head)


def test_a_signed_head_holds_for_its_key_alone(closed: Path, tmp_path: Path) -> None:
    (private, public), (_, other) = make_key(tmp_path, "mine"), make_key(tmp_path, "other")
    (problem,) = History.verify(closed, key=public)
    assert "ledger.signature: missing" in problem
    table = seal(closed, private)
    assert table["head"] == History.open(closed).contents.head
    assert verify(closed, key=public).signature == "holds"
    assert verify(closed).signature == "not checked"
    assert (verify(closed).problems, verify(closed).signed) == ([], 8)
    (problem,) = History.verify(closed, key=other)
    assert "not the key" in problem
    rewrite(closed)
    assert "the signed head is not in the chain" in History.verify(closed, key=public)[0]
    seal_of_rewritten = {**table, "head": History.open(closed).contents.head}
    (closed / "ledger.signature").write_text(json.dumps(seal_of_rewritten))
    assert History.verify(closed) == []
    (problem,) = History.verify(closed, key=public)
    assert "not valid for this head" in problem


def test_an_open_history_can_be_signed_and_grows_on(tmp_path: Path) -> None:
    private, public = make_key(tmp_path, "mine")
    history = recording.create(tmp_path / "h", "selective")
    for each in recording.rounds()[:4]:
        history.record(each)
    seal(tmp_path / "h", private)
    for each in recording.rounds()[4:]:
        history.record(each)
    history.close()
    verdict = verify(tmp_path / "h", key=public)
    assert (verdict.problems, verdict.signature, verdict.signed, verdict.rounds) == ([], "holds", 4, 8)


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 4000, b"\xff", b"x" * 5000, b'{"head": 1}'])
def test_a_file_that_is_no_signature_is_named(content: bytes, closed: Path) -> None:
    (closed / "ledger.signature").write_bytes(content)
    (problem,) = History.verify(closed)
    assert "ledger.signature" in problem


def test_what_is_damaged_is_not_signed(closed: Path, tmp_path: Path) -> None:
    private, _ = make_key(tmp_path, "mine")
    (closed / "notes.txt").touch()
    with pytest.raises(DamagedError, match="not signed"):
        seal(closed, private)
    assert not (closed / "ledger.signature").exists()


def test_the_commands(closed: Path, tmp_path: Path) -> None:
    private, public = make_key(tmp_path, "mine")
    head = History.open(closed).contents.head
    done = fedcrab("verify", "h", cwd=tmp_path)
    assert done.returncode == 0
    assert f"head {head} (8 rounds, closed)" in done.stdout
    done = fedcrab("seal", "h", "--key", str(private), cwd=tmp_path)
    assert (done.returncode, head in done.stdout) == (0, True)
    done = fedcrab("verify", "h", "--key", str(public), "--head", head, "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == {
        "ok": True,
        "problems": [],
        "head": head,
        "rounds": 8,
        "closed": True,
        "anchored_rounds": 8,
        "signature": "holds",
        "signed_rounds": 8,
    }
    done = fedcrab("verify", "h", "--head", "0" * 64, cwd=tmp_path)
    assert (done.returncode, "is not in its chain" in done.stdout) == (2, True)
    done = fedcrab("seal", "h", "--key", str(public), cwd=tmp_path)
    assert (done.returncode, "private key" in done.stderr) == (2, True)


def test_a_closed_history_without_the_hash_of_its_ledger_is_named(closed: Path) -> None:
    contents = History.open(closed).contents
    forge.write_head(closed, contents.entries, contents.head, None)
    (problem,) = History.verify(closed)
    assert "closed, but not sealed" in problem


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "ledger.sqlite-journal", "snapshots/x", "more"])
def test_a_stranger_in_an_open_history_is_named(name: str, tmp_path: Path) -> None:
    recording.create(tmp_path / "h", "selective").release()
    (tmp_path / "h" / ".ledger.head.tmp").touch()  # what a killed writer leaves is no stranger
    (tmp_path / "h" / "snapshots" / ("0" * 64 + ".safetensors")).touch()
    assert History.verify(tmp_path / "h") == []
    stranger = tmp_path / "h" / name
    stranger.mkdir() if name == "more" else stranger.write_bytes(b"something")
    (problem,) = History.verify(tmp_path / "h")
    assert name in problem


def record(path: Path, trained: Training, **settings: object) -> History:
    shutil.rmtree(path, ignore_errors=True)
    with History.create(path, trained.initial_model, initial_loss=2.3, seed=1, **settings) as history:
        for each in trained.rounds:
            history.record(each)
    return history


def measured(each: Round, *, known: bool) -> RoundRecord:
    """A round as it is recorded; ``known`` is whether an earlier mean is compared with it."""
    updates, size = each.updates, len(each.start)
    means = [InMemory(np.arange(size, dtype=np.float32))] if known else []
    found = measure(updates.vectors, each.aggregate, means, (slice(0, size),))
    selected = np.ones(len(updates.clients), bool)
    numbers = (updates.weights, found.norms, found.cosines, selected)
    present = Participants(updates.clients, *numbers, b"", found.coordinates)
    return RoundRecord(
        each.index,
        1.0,
        0.1,
        "",
        "",
        "",
        None,
        (0,) * known,
        present,
        (),
    )


@given(trained=trainings())
def test_no_honest_round_contradicts_itself(trained: Training) -> None:
    rounds = [measured(each, known=bool(each.index % 2)) for each in trained.rounds if each.updates.clients]
    assert [p for entry in rounds for p in round_problems(entry)] == []


def test_the_least_residual_is_that_of_a_search() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        units = rng.normal(size=(3, 2))
        units /= np.linalg.norm(units, axis=1, keepdims=True)
        cosines = rng.uniform(-1, 1, 3)
        angles, radii = np.meshgrid(np.linspace(0, 2 * np.pi, 721), np.linspace(0, 1, 201))
        tried = np.stack([radii * np.cos(angles), radii * np.sin(angles)]).reshape(2, -1)
        best = np.linalg.norm(units @ tried - cosines[:, None], axis=0).min()
        assert least_residual(units, cosines) == pytest.approx(best, abs=1e-2)
        assert least_residual(units, cosines) <= best + 1e-9


FORGERIES = {
    "a norm": ({"norms": 1e3}, "the norm of client '0'"),
    "a cosine": ({"cosines": -0.99}, "no aggregate can have these"),
    "a cosine above 1": ({"cosines": 1.5}, "a cosine is above 1"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_number_is_named_whatever_its_hashes_say(name: str, tmp_path: Path) -> None:
    edit, said = FORGERIES[name]
    record(tmp_path / "h", training(rounds=3), selection=Selective(clients=1.0))
    ledger = (tmp_path / "h" / "ledger.sqlite").read_bytes()
    content, entries, digest = forge.edited(ledger, forge.client_with(1, "0", **edit))
    forge.put_ledger(tmp_path / "h", content, entries, digest)
    (problem,) = History.verify(tmp_path / "h")
    assert said in problem


def test_a_kept_update_that_the_ledger_does_not_know_is_named(tmp_path: Path) -> None:
    record(tmp_path / "h", training(rounds=3), selection=Everything())
    ledger = (tmp_path / "h" / "ledger.sqlite").read_bytes()
    edit = forge.client_with(1, "2", raw_digests=bytes(32))
    content, entries, digest = forge.edited(ledger, edit)
    forge.put_ledger(tmp_path / "h", content, entries, digest)
    (problem,) = History.verify(tmp_path / "h")
    assert "the update of client '2' has a different sha256" in problem


@pytest.mark.parametrize("selection", [Everything(), Compact(clients=1.0)], ids=["exact", "packed"])
@pytest.mark.parametrize("scale", [1.0, 1e-3], ids=["plain", "small steps"])
def test_cosines_that_fit_the_coordinates_but_not_the_stored_step_are_named(
    tmp_path: Path, selection: Selection, scale: float
) -> None:
    """Exchanged between two clients of the same length, they belong to another aggregate."""
    rng, path = np.random.default_rng(3), tmp_path / "h"
    model = 10 * rng.normal(size=40).astype(np.float32)
    with History.create(path, model, selection=selection) as history:
        for t in range(3):
            sent = scale * rng.normal(size=(2, 40)).astype(np.float32)
            updates = Updates(("a", "b"), sent, np.array([1.0, 3.0]))
            step = (sent[0] + 3 * sent[1]) / 4
            history.record(Round(t, model, updates, step, 1.0, 0.1))
            model = model + step
    assert History.verify(path) == []
    a, b = History.open(path).rounds[1].cosines
    edits = forge.client_with(1, "a", cosines=b), forge.client_with(1, "b", cosines=a)
    forge.put_ledger(path, *forge.edited((path / "ledger.sqlite").read_bytes(), *edits))
    (said,) = History.verify(path)
    assert "round 1: the cosine of client 'a' does not match its update and the step" in said
