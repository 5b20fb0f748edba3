"""`audit` and `detect` on a training with a backdoor, as people and programs call them."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedcrab.attack.trigger import Trigger, stamp
from fedcrab.detect import Detection, Suspicion, join
from fedcrab.simulate import load_dataset
from trials.command import fedcrab

pytestmark = pytest.mark.long(20)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("forensics")
    spread = "clients.partition={name='dirichlet', settings={concentration=0.5}}"
    common = ["train", "digits", "--workers", "0", "--set", "rounds=16", "--set", spread]
    for name, kept in (("h", "compact"), ("lean", "selective")):
        history = [*common, "--history", name, "--set", f"history={{name='{kept}'}}"]
        assert fedcrab(*history, cwd=place).returncode == 0
    data = load_dataset("digits")
    stamped = stamp(data.test_x[data.test_y != 0][:10], Trigger(size=2))
    np.savez(place / "these.npz", x=stamped, y=np.zeros(10, int))
    return place


def attackers(place: Path) -> set[str]:
    from fedcrab.experiment.setup import setup_of
    from fedcrab.history import History

    return set(setup_of(History.open(place / "h"), 0).attackers.clients)


def test_audit_of_a_history_says_what_and_when(place: Path) -> None:
    told = json.loads(fedcrab("audit", "h", "--json", "--picture", "t.png", cwd=place).stdout)
    (final,) = told["models"]
    assert (final["planted"], final["class"], final["model"]) == (True, 0, "final")
    assert final["lift"] > 0.8
    assert told["timeline"]["planted"] <= 8
    assert (place / "t.png").read_bytes().startswith(b"\x89PNG")
    shown = fedcrab("audit", "h", cwd=place).stdout
    assert "planted" in shown
    assert "It works in every kept model from round" in shown
    assert "█" in shown or "▓" in shown


def test_after_a_recovery_the_trigger_is_gone(place: Path) -> None:
    names = ",".join(sorted(attackers(place)))
    recover = ["recover", "h", "--malicious", names, "--method", "retrain", "--out", "out", "--workers", "0"]
    assert fedcrab(*recover, cwd=place).returncode == 0
    told = json.loads(fedcrab("audit", "out", "--json", cwd=place).stdout)
    final, recovered = told["models"]
    assert (final["model"], recovered["model"]) == ("final", "retrain")
    assert final["planted"]
    assert not recovered["planted"]
    assert recovered["lift"] < 0.3 < final["lift"]
    file = ["audit", "out/retrain/model.safetensors"]
    alone = json.loads(fedcrab(*file, "--history", "h", "--json", cwd=place).stdout)
    assert alone["models"][0]["ratio"] == recovered["ratio"]
    assert alone["timeline"] is None
    refused = fedcrab(*file, cwd=place)
    assert refused.returncode == 2
    assert "pass it as --history DIR" in refused.stderr


@pytest.mark.parametrize("given", [[], ["--detector", "taught"], ["--detector", "taught", "--examples"]])
def test_detect_names_the_teachers(place: Path, given: list[str]) -> None:
    options = [*given, "these.npz"] if "--examples" in given else given
    told = json.loads(fedcrab("detect", "h", *options, "--json", cwd=place).stdout)
    assert told["detector"] == ("taught" if given else "all")
    assert set(told["suspects"]) <= attackers(place)
    ranked = sorted(told["clients"], key=lambda row: -row["score"])
    assert {row["client"] for row in ranked[:5]} == attackers(place)
    if "--examples" not in given:
        assert len(told["suspects"]) >= 4
        assert any("taught" in row["reason"] for row in ranked if row["suspect"])


def test_detect_goes_into_plan(place: Path) -> None:
    shown = fedcrab("detect", "h", cwd=place).stdout
    assert "Next: fedcrab plan h --malicious" in shown
    assert "The model has a planted trigger for class 0" in " ".join(shown.split())
    assert fedcrab("plan", "h", "--malicious", "-", cwd=place, given=shown).returncode == 0


def test_without_updates_what_is_known_and_by_whom_is_not(place: Path) -> None:
    told = json.loads(fedcrab("detect", "lean", "--detector", "taught", "--json", cwd=place).stdout)
    assert told["suspects"] == []
    assert told["strength"] == 1
    assert "planted trigger for class 0" in told["notes"][0]
    assert "keeps no update vectors" in told["notes"][1]
    shown = fedcrab("detect", "lean", "--detector", "taught", cwd=place).stdout
    assert "No sign of attack that points to a client" in shown
    assert fedcrab("plan", "lean", "--malicious", "-", cwd=place, given=shown).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("audit none", "none"),
        ("audit these.npz --history h", "these.npz"),
        (
            "detect h --detector ledger --examples these.npz",
            "--examples applies to the detectors taught and all",
        ),
        ("detect h --examples none.npz", "not a readable .npz file"),
        ("detect h --detector taught --examples h/ledger.sqlite", "not a readable .npz file"),
    ],
)
def test_wrong_input_is_one_sentence(place: Path, arguments: str, sentence: str) -> None:
    done = fedcrab(*arguments.split(), cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    *progress, said = done.stderr.splitlines()
    assert sentence in said
    assert all(line.endswith("…") for line in progress)


def test_joined_by_hand() -> None:
    first = Detection("ledger", 5, {"a": 4.0, "b": 1.0, "c": 0.0}, {"a": Suspicion("long", 0.9)}, 2.0, ("n",))
    second = Detection(
        "taught",
        4,
        {"a": 0.5, "b": 1.0, "c": 0.2},
        {"a": Suspicion("taught", 0.8), "b": Suspicion("taught", 0.7)},
        1.5,
    )
    both = join([first, second], ["m"])
    assert both.suspects == ("a", "b")
    assert both.suspicions["a"] == Suspicion("long; taught", 0.9)
    assert both.scores == {"a": 1.0, "b": 1.0, "c": 0.2}
    assert (both.strength, both.rounds, both.notes) == (2.0, 5, ("m", "n"))
    weak = Detection("lessons", 5, {"a": 0.0, "b": 0.0, "c": 0.1}, {}, 0.5)
    assert join([first, weak]).scores == {"a": 1.0, "b": 0.25, "c": 0.5}


def test_the_page_shows_what_detect_said(place: Path) -> None:
    from fedcrab.history import History
    from fedcrab.report.page import page_data

    told = json.loads(fedcrab("detect", "h", "--json", cwd=place).stdout)
    shown = page_data(History.open(place / "h"))["detection"]
    assert shown["detector"] == "all"
    assert [row["client"] for row in shown["clients"] if row["suspect"]] == told["suspects"]
    assert shown["notes"] == told["notes"]
