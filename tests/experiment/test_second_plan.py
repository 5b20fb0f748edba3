"""More attackers are found after a recovery: the second plan counts and leaves out all of them."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from fedcrab import ConfigError, DamagedError, History, HistoryError, plan, recover
from fedcrab.aggregate import fedavg
from fedcrab.experiment.config import load_config
from fedcrab.experiment.recovery import measure_outcome, poisoned, recover_to_end
from fedcrab.experiment.run import recover_command
from fedcrab.experiment.setup import Setup, open_for_training, prepare, run
from fedcrab.recover.folder import open_history_or_recovery
from fedcrab.train import train

CHANGES = ["rounds=10", "local.learning_rate=0.3", "attack.fraction=0.3", "attack.settings.boost=3.0"]


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(load_config("digits", CHANGES), workers=0)


@pytest.fixture(scope="module")
def found(setup: Setup) -> tuple[set[str], set[str]]:
    bad = sorted(setup.attackers.clients)
    return set(bad[:2]), set(bad[2:])


def asr(setup: Setup, outcome) -> float:
    return measure_outcome(setup, outcome)["asr"]


def test_a_recovery_is_planned_again_with_all_that_are_known(setup, found, tmp_path: Path) -> None:
    first, later = found
    with open_for_training(setup, tmp_path / "h", resume=False) as history:
        list(run(setup, history))
    rows, _ = recover_command(tmp_path / "h", first, "crab-hardened", tmp_path / "out", workers=0)
    assert rows[-1]["asr"] > 0.5  # those not found poison the recovery
    history, earlier = open_history_or_recovery(tmp_path / "out")
    assert (history.path, earlier) == (tmp_path / "h", dict.fromkeys(first, 0))
    second = plan(history, later | first)
    assert set(second.malicious) == setup.attackers.clients
    assert not {c for _, clients in second.replay for c in clients} & setup.attackers.clients
    rows, _ = recover_command(history.path, later | first, "crab-hardened", tmp_path / "again", workers=0)
    assert rows[-1]["asr"] < 0.1
    assert open_history_or_recovery(tmp_path / "again")[1].keys() == setup.attackers.clients


def test_training_goes_on_after_a_recovery_and_is_planned_again(setup, found, tmp_path: Path) -> None:
    first, later = found
    history = open_for_training(setup, tmp_path / "h", resume=False)
    assert [step.round for step in islice(run(setup, history), 6)] == [0, 1, 2, 3, 4, 5]
    history.release()
    halfway = plan(History.open(tmp_path / "h"), first)
    *_, last = recover.crab(halfway, setup.fleet)
    rest = [client for client in setup.honest.clients if client not in first]
    with History.resume(tmp_path / "h") as history:
        how = {"probe": setup.probe, "aggregate": fedavg(), "rounds": 12, "seed": 0, "model": last.model}
        assert len([*train(setup.fleet, rest, history, **how)]) == 6
    assert History.verify(tmp_path / "h") == []
    history = History.open(tmp_path / "h")
    np.testing.assert_array_equal(history.initial_model(), halfway.history.initial_model())
    assert asr(setup, poisoned(history)) > 0.5
    both = plan(history, first | later)
    assert "the model was recovered there" in " ".join(both.warnings)
    assert "Not seen since" not in " ".join(both.warnings)
    forgotten = plan(history, later)
    assert f"Not seen since: {', '.join(sorted(first, key=int))};" in " ".join(forgotten.warnings)
    assert all(s >= f for s, f in zip(both.sensitivity, plan(history, first).sensitivity, strict=True))
    assert asr(setup, recover_to_end("crab-hardened", history, first | later, setup)) < 0.1


def test_what_is_no_recovery(setup, tmp_path: Path) -> None:
    for text in ("{}", "[]", "nothing", '{"history": "h", "history_head": 3, "malicious": []}'):
        (tmp_path / "summary.json").write_text(text)
        with pytest.raises(DamagedError, match="not the summary"):
            open_history_or_recovery(tmp_path)
    summary = {"history": str(tmp_path / "gone"), "history_head": "x", "malicious": ["1"]}
    summary |= {"method": "crab-hardened", "model_sha256": "0" * 64}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(HistoryError):
        open_history_or_recovery(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "summary.json").write_text(json.dumps({**summary, "history": "elsewhere"}))
    with pytest.raises(ConfigError, match="different histories"):
        open_history_or_recovery(tmp_path)
    with pytest.raises(HistoryError):
        open_history_or_recovery(tmp_path / "nowhere")
