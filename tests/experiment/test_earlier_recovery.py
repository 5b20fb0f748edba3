"""A recovery and a certificate of an earlier version open, verify and resume.

``fixtures/recovery-1`` is never made again: a training on the digits (softmax, 6 clients, 6 rounds), its
recovery finished and certified, and the same recovery after two of its three steps, all by the program before
settings had ``everyone`` and ``batches``, whose rollback allowed β = 0.3.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedcrab import ConfigError, History, Vector
from fedcrab.certificate import verify_certificate
from fedcrab.experiment.run import recover_command
from fedcrab.history.snapshots import read_model
from fedcrab.recover.folder import read_results
from trials.command import fedcrab

FIXTURE = Path(__file__).parents[1] / "fixtures" / "recovery-1"
AS_THEN = ["beta=0.3", "everyone=false", "batches=history"]
METHOD = "crab-hardened"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = Path(shutil.copytree(FIXTURE, tmp_path / "earlier"))
    monkeypatch.chdir(place)  # the summaries name the history as it was given then: h
    return place


def model_in(place: Path, out: str) -> Vector:
    folder = place / out / METHOD
    digest = json.loads((folder / "summary.json").read_text())["model_sha256"]
    return read_model(folder / "model.safetensors", digest, History.open(place / "h").charter.layout)


def test_it_opens_and_verifies(place: Path) -> None:
    assert History.verify(place / "h") == []
    for method in (METHOD, "retrain"):
        assert verify_certificate(place / "finished" / method / "certificate.json") == []
        assert fedcrab("verify", f"finished/{method}", cwd=place).returncode == 0
    _, results = read_results(place / "finished")
    assert sorted(result.method for result in results) == [METHOD, "retrain"]
    assert fedcrab("report", "finished", "-o", "page.html", cwd=place).returncode == 0


def test_half_done_it_resumes_with_the_same_bits(place: Path) -> None:
    for out in ("half", "again"):
        recover_command(place / "h", {"0", "5"}, METHOD, place / out, changes=AS_THEN, workers=0)
    then, resumed, again = (model_in(place, out) for out in ("finished", "half", "again"))
    np.testing.assert_allclose(resumed, then, rtol=0, atol=1e-6)
    if np.array_equal(again, then):  # a processor of the same kind
        assert np.array_equal(resumed, then)


def test_with_todays_settings_it_is_another_recovery(place: Path) -> None:
    with pytest.raises(ConfigError, match="different batches, everyone, model; repeat the same request"):
        recover_command(place / "h", {"0", "5"}, METHOD, place / "half", workers=0)
