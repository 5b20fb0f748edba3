"""A recovery's job folder is the training's, with a Recovery on the server and nothing else changed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flare_processes import ROOT

from fedcrab import ConfigError
from fedcrab.nvflare import make_recovery_job
from fedcrab.nvflare.__main__ import main

RECORDER = {"path": "fedcrab.nvflare.recorder.Recorder", "args": {"history": "/srv/h"}}
PERSISTOR = {
    "id": "persistor",
    "path": "nvflare.app_common.np.np_model_persistor.NPModelPersistor",
    "args": {},
}
GIVEN = {"history": "/srv/h", "malicious": "site-2,site-4@3", "recovered": "/srv/r"}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """What FLARE exports of a ScatterAndGather job: one app for the server, one per site."""
    place = tmp_path / "digits"
    server = {
        "format_version": 2,
        "workflows": [{"id": "controller", "path": "nvflare...ScatterAndGather", "args": {}}],
        "components": [PERSISTOR, {"id": "aggregator", **RECORDER}],
        "task_data_filters": [{"tasks": ["train"], "filters": []}],
    }
    files: dict[str, Any] = {
        "meta.json": {"name": "digits", "min_clients": 4, "deploy_map": {"app": ["@ALL"]}},
        "app_server/config/config_fed_server.json": server,
        "app_site-1/config/config_fed_client.json": {"executors": [{"tasks": ["*"]}]},
        "app_site-1/custom/client.py": "a script",
        "app_server/custom/fedcrab/nvflare/recorder.py": "a copy",
    }
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(json.dumps(content))
    return place


def contents(place: Path) -> dict[str, Any]:
    return {str(p.relative_to(place)): json.loads(p.read_text()) for p in place.rglob("*") if p.is_file()}


def test_the_sites_side_is_the_training_s(job: Path, tmp_path: Path) -> None:
    before = contents(job)
    made = contents(make_recovery_job(job, tmp_path / "out", **GIVEN, quorum=0.8))
    assert contents(job) == before
    server = made.pop("app_server/config/config_fed_server.json")
    assert made.pop("meta.json") == {**before["meta.json"], "name": "digits-recovery", "min_clients": 2}
    assert all(made[name] == before[name] for name in made)
    assert len(made) == 2
    workflow = {
        "id": "controller",
        "path": "fedcrab.nvflare.Recovery",
        "args": {**GIVEN, "quorum": 0.8},
    }
    assert server["workflows"] == [workflow]
    assert server["components"] == [PERSISTOR]
    assert server["task_data_filters"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"malicious": ""}, "names no site"),
        ({"speed": 3}, "speed"),
        ({"quorum": "all"}, "setting"),
        ({"training": "nothing"}, "not a part of a FLARE job"),
        ({"training": "."}, "not a part of a FLARE job"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(
    job: Path, tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    training = tmp_path / change.pop("training", job.name)
    with pytest.raises(ConfigError, match=told):
        make_recovery_job(training, tmp_path / "out", **{**GIVEN, **change})
    assert not (tmp_path / "out").exists()


def test_an_existing_folder_is_left_alone(job: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="something already"):
        make_recovery_job(job, tmp_path / "out", **GIVEN)
    assert list((tmp_path / "out").iterdir()) == []


def test_the_command_makes_absolute_paths_and_says_what_comes_next(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(job, Path("h"), "site-2", Path("r"), settings=["deadline=30", "epochs_key=epochs"], since=["3"])
    assert capsys.readouterr().out.endswith("Next: nvflare job submit -j recovery-job\n")
    server = contents(tmp_path / "recovery-job")["app_server/config/config_fed_server.json"]
    wanted = {"history": str(tmp_path / "h"), "malicious": "site-2", "recovered": str(tmp_path / "r")}
    assert server["workflows"][0]["args"] == {
        **wanted,
        "since": ["3"],
        "deadline": 30,
        "epochs_key": "epochs",
    }


def test_a_wrong_command_is_one_sentence_and_exit_code_2(job: Path, tmp_path: Path) -> None:
    words = [str(job), "--history=h", "--malicious=site-2", "--recovered=r", "--set", "quorum"]
    command = [sys.executable, "-m", "fedcrab.nvflare", *words]
    env = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == "Error: --set takes name=value such as quorum=0.8, got 'quorum'"
    assert not (tmp_path / "recovery-job").exists()
