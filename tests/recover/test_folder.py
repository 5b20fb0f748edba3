"""A recovery's folder: one reader and one writer, for the simulator, Flower, the page and the certificate."""

import json
import shutil
from pathlib import Path

import pytest

import fedcrab
from fedcrab.certificate.certificate import certify_folder
from fedcrab.errors import ConfigError, DamagedError
from fedcrab.recover.folder import (
    SUMMARY,
    RecoveryFolder,
    find_folder,
    history_of,
    open_history_or_recovery,
    read_results,
    recoveries_in,
)
from fedcrab.report.page import find, recoveries_of
from trials.convex import Training
from trials.recovered import recovered


@pytest.fixture
def made(tmp_path: Path) -> tuple[Training, RecoveryFolder]:
    return recovered(tmp_path)


def change(folder: RecoveryFolder, **values: object) -> None:
    table = json.loads((folder.path / SUMMARY).read_text())
    (folder.path / SUMMARY).write_text(json.dumps({**table, **values}))


@pytest.mark.parametrize("inside", ["", "recovered"])
def test_a_recovery_is_not_written_into_its_history(
    made: tuple[Training, RecoveryFolder], inside: str
) -> None:
    training, _ = made
    place = training.history.path / inside
    before = sorted(training.history.path.rglob("*"))
    with pytest.raises(ConfigError, match="cannot be written into its history"):
        fedcrab.recover(training.history, training.problem, malicious=training.malicious, out=place)
    assert sorted(training.history.path.rglob("*")) == before


def test_a_summary_without_measurements_is_read_by_all(made: tuple[Training, RecoveryFolder]) -> None:
    training, folder = made
    out, history = folder.path.parent, training.history
    assert "ta" not in folder.summary  # as Flower writes it, which has no test data
    assert [f.method for f in recoveries_in(out)] == ["crab-hardened", "retrain"]
    assert open_history_or_recovery(out)[1] == dict.fromkeys(sorted(training.malicious), 0)
    assert [result.method for result in read_results(out)[1]] == ["crab-hardened", "retrain"]
    assert find(out)[0].path == history.path
    assert [row["ta"] for row in recoveries_of(out, history)["methods"]] == [None, None]
    assert find_folder(folder.path).retraining() == RecoveryFolder(out.absolute() / "retrain")
    with pytest.raises(ConfigError, match="several recoveries"):
        find_folder(out)


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": 3},
        {"history": None},
        {"history": "a\0b"},
        {"history_head": 3},
        {"malicious": "1"},
        {"malicious": [1]},
        {"model_sha256": "../../model"},
    ],
    ids=str,
)
def test_a_summary_that_cannot_be_is_refused_by_all(
    made: tuple[Training, RecoveryFolder], wrong: dict[str, object]
) -> None:
    training, folder = made
    out = folder.path.parent
    change(folder, **wrong)
    readers = (recoveries_in, open_history_or_recovery, read_results, find)
    for read in readers:
        with pytest.raises(DamagedError, match="summary"):
            read(out)
    again = RecoveryFolder.open(folder.path)
    with pytest.raises(DamagedError, match="summary"):
        certify_folder(again, training.history, assumptions=training.problem.assumptions())


def test_another_state_of_the_history_is_refused_by_all(made: tuple[Training, RecoveryFolder]) -> None:
    training, folder = made
    change(folder, history_head="0" * 64)
    out, again = folder.path.parent, RecoveryFolder.open(folder.path)
    with pytest.raises(DamagedError, match="another state"):
        again.check_history(training.history)
    for read in (open_history_or_recovery, read_results, find):
        with pytest.raises(DamagedError, match="another state"):
            read(out)
    with pytest.raises(DamagedError, match="another state"):
        recoveries_of(out, training.history)
    with pytest.raises(DamagedError, match="another state"):
        certify_folder(again, training.history, assumptions=training.problem.assumptions())


def test_recoveries_of_two_histories_are_not_mixed(made: tuple[Training, RecoveryFolder]) -> None:
    _, folder = made
    out = folder.path.parent
    change(folder, history=str(out / "elsewhere"))
    with pytest.raises(ConfigError, match="different histories"):
        history_of(out, recoveries_in(out))


def test_only_the_model_that_the_summary_names_is_certified(made: tuple[Training, RecoveryFolder]) -> None:
    training, folder = made
    shutil.copy(folder.path.parent / "retrain" / "model.safetensors", folder.path / "model.safetensors")
    with pytest.raises(DamagedError, match="sha256"):
        certify_folder(folder, training.history, assumptions=training.problem.assumptions())


def test_one_module_names_the_files() -> None:
    names = ("summary.json", "model.safetensors", "start.safetensors", "curve.jsonl", "request.json")
    root = Path(fedcrab.__file__).parent
    quoting = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for name in names
        if f'"{name}"' in path.read_text()
    }
    assert quoting == {"recover/folder.py", "recover/saved_steps.py"}
