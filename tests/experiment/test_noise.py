"""Recovery from a noised rollback model by the command: what it writes, and what its certificate states."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

from fedcrab import ConfigError, History
from fedcrab.certificate import SOUND, read_certificate, verify_certificate
from fedcrab.experiment.recovery import RecoveryRun
from fedcrab.experiment.setup import setup_of
from trials.command import fedcrab, sentences

TRAINING = ["model=softmax", "rounds=8", "local.batch=1000", "attack.start=5", "attack.settings.boost=1.0"]
BUDGET = {"epsilon": 0.5, "delta": 1e-5}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("noise")
    changes = [word for change in TRAINING for word in ("--set", change)]
    trained = fedcrab("train", "digits", "--history", "h", "--workers", "0", "--json", *changes, cwd=place)
    (place / "bad").write_text(",".join(json.loads(trained.stdout)["attackers"]))
    return place


def recover(place: Path, *more: str) -> CompletedProcess[str]:
    bad = (place / "bad").read_text()
    return fedcrab(
        "recover", "h", "--malicious", bad, "--method", "crab-hardened", "--workers", "0", *more, cwd=place
    )


def test_a_noised_recovery_and_its_certificate(place: Path) -> None:
    asked = ["--epsilon", "0.5", "--delta", "1e-5", "--set", "beta=3"]
    done = recover(place, *asked, "--out", "out")
    assert done.returncode == 0, done.stderr
    folder = place / "out" / "crab-hardened"
    table = read_certificate(folder / "certificate.json")
    assert table["inputs"]["noise"] == BUDGET
    assert table["subject"]["rollback_round"] > 0
    deviation, length = (table["terms"][f"noise.{name}"] for name in ("deviation", "length"))
    assert deviation["flag"] == SOUND
    trained = History.open(place / "h").charter.layout.size
    assert length["value"] == pytest.approx(deviation["value"] * np.sqrt(trained), rel=0.2)
    assert verify_certificate(folder / "certificate.json") == []
    assert fedcrab("certify", str(folder), cwd=place).returncode == 0
    assert read_certificate(folder / "certificate.json")["inputs"]["noise"] == BUDGET
    other = recover(place, *asked[:-2], "--set", "beta=3", "--delta", "1e-6", "--out", "out")
    assert other.returncode == 2
    assert "different noise" in other.stderr


def test_stopped_it_goes_on_from_the_same_noise_and_another_time_draws_another(place: Path) -> None:
    history = History.open(place / "h")
    bad, setup = (place / "bad").read_text().split(","), setup_of(history, 0)
    models = {}
    for name in ("one", "two"):
        first = RecoveryRun("crab-hardened", history, bad, setup, saved=place / name, noise=BUDGET, beta=3.0)
        next(iter(first))
        del first
        again = RecoveryRun("crab-hardened", history, bad, setup, saved=place / name, noise=BUDGET, beta=3.0)
        assert again.done == 1
        list(again)
        models[name] = again.outcome().model.tobytes(), again.start.tobytes()
    assert models["one"][0] != models["two"][0]
    assert models["one"][1] != models["two"][1]
    (place / "one" / "start.safetensors").unlink()
    with pytest.raises(ConfigError, match="different start"):
        list(RecoveryRun("crab-hardened", history, bad, setup, saved=place / "one", noise=BUDGET, beta=3.0))


@pytest.mark.parametrize(
    "wrong",
    [
        ["--epsilon", "1"],
        ["--delta", "0.1"],
        ["--epsilon", "0", "--delta", "0.1"],
        ["--epsilon", "1", "--delta", "0.1", "--method", "retrain"],
        ["--epsilon", "1", "--delta", "0.1", "--method", "all"],
    ],
)
def test_noise_that_cannot_be_is_refused_and_nothing_written(wrong: list[str], place: Path) -> None:
    done = recover(place, *wrong, "--out", "refused")
    assert done.returncode == 2
    assert len(sentences(done.stderr)) == 1
    assert not (place / "refused").exists()
