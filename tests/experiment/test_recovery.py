"""Recovery by the harness: every method from the history it needs, saved, resumed, judged."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedcrab import (
    ConfigError,
    DamagedError,
    Every,
    Everything,
    History,
    HistoryError,
    Selective,
    plan,
)
from fedcrab.certify import verify_certificate
from fedcrab.experiment import names
from fedcrab.experiment.config import load
from fedcrab.experiment.recover_command import evaluate_command, recover_command
from fedcrab.experiment.recovery import Recovery, judged, poisoned, recovered
from fedcrab.experiment.rerecord import rerecord
from fedcrab.experiment.results import read_results
from fedcrab.experiment.setup import Setup, open_history, prepare, run

CHANGES = ["rounds=10", "local.learning_rate=0.3"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recovery")


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(load("digits", [*CHANGES, "history.name=everything"]), workers=0)


@pytest.fixture(scope="module")
def kept(place: Path, setup: Setup) -> dict[type, History]:
    with open_history(setup, place / "everything", resume=False) as history:
        assert len(list(run(setup, history))) == 10
    everything = History.open(place / "everything")
    others = {type(s): rerecord(everything, place / type(s).__name__, s) for s in (Selective(), Every(2))}
    return {Everything: everything, **others}


def test_recorded_anew_it_is_the_history_that_would_have_been(
    kept: dict[type, History], tmp_path: Path
) -> None:
    direct = prepare(load("digits", CHANGES), workers=0)
    with open_history(direct, tmp_path / "direct", resume=False) as history:
        list(run(direct, history))
    anew = kept[Selective]
    assert anew.kept == history.kept
    assert [e.digests for e in anew.rounds] == [e.digests for e in history.rounds]
    np.testing.assert_array_equal(anew.final_model(), history.final_model())
    with pytest.raises(HistoryError, match="Everything"):
        rerecord(anew, tmp_path / "again", Selective())


@pytest.mark.parametrize("method", names.METHODS)
def test_every_method_takes_the_backdoor_out(method: str, kept: dict[type, History], setup: Setup) -> None:
    history = kept[type(names.METHODS[method].selection)]
    bad = setup.attackers.clients
    before = judged(setup, poisoned(history))
    after = judged(setup, recovered(method, history, bad, setup))
    assert before["asr"] > 0.5
    assert after["asr"] < 0.2
    assert after["ta"] > 0.6
    assert 0 < after["client_rounds"] <= 10 * 15
    assert after["rounds"] == len(recovered(method, history, bad, setup).steps)


def test_a_recovery_that_stopped_goes_on_with_the_same_bits(
    kept: dict[type, History], setup: Setup, tmp_path: Path
) -> None:
    bad = setup.attackers.clients
    for method in ("crab-hardened", "fedrecover"):
        history = kept[type(names.METHODS[method].selection)]
        straight = recovered(method, history, bad, setup)
        for count, _ in enumerate(Recovery(method, history, bad, setup, saved=tmp_path / method), start=1):
            if count == 3:
                break
        again = Recovery(method, history, bad, setup, saved=tmp_path / method)
        assert again.done == 3
        rest = list(again)
        assert len(rest) == len(straight.steps) - 3
        np.testing.assert_array_equal(again.outcome().model, straight.model)
        done = Recovery(method, history, bad, setup, saved=tmp_path / method)
        assert list(done) == []
        np.testing.assert_array_equal(done.outcome().model, straight.model)


def test_the_commands_write_and_judge(kept: dict[type, History], setup: Setup, tmp_path: Path) -> None:
    bad = setup.attackers.clients
    rows, refused = recover_command(kept[Selective].path, bad, "all", tmp_path / "out", workers=0)
    assert [r["method"] for r in rows] == ["poisoned", "retrain", "crab-paper", "crab-hardened"]
    assert set(refused) == {"federaser", "fedrecover"}
    assert "Everything()" in refused["fedrecover"]
    assert not (tmp_path / "out" / "fedrecover").exists()
    judged_rows = evaluate_command(tmp_path / "out", workers=0)
    by_name = {r["method"]: r for r in judged_rows}
    for row in rows[1:]:
        assert by_name[row["method"]]["ta"] == row["ta"]
        assert by_name[row["method"]]["client_rounds"] == row["client_rounds"]
    assert all(0 <= r["misr"] <= 1 and 0 <= r["misr_auc"] <= 1 for r in judged_rows)
    assert by_name["retrain"]["distance"] == 0
    summary = json.loads((tmp_path / "out" / "crab-paper" / "summary.json").read_text())
    assert summary["malicious"] == sorted(bad)
    _, results = read_results(tmp_path / "out" / "crab-paper")
    assert [r.method for r in results] == ["crab-paper"]


def test_what_was_changed_afterwards_is_noticed(
    kept: dict[type, History], setup: Setup, tmp_path: Path
) -> None:
    recover_command(kept[Selective].path, setup.attackers.clients, "crab-paper", tmp_path / "out", workers=0)
    model = tmp_path / "out" / "crab-paper" / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    with pytest.raises(DamagedError, match="sha256"):
        read_results(tmp_path / "out")
    (tmp_path / "out" / "crab-paper" / "summary.json").write_text("{}")
    with pytest.raises(DamagedError, match="not the summary"):
        read_results(tmp_path / "out")
    with pytest.raises(HistoryError, match="no recovery here"):
        read_results(tmp_path)


def test_questions_that_cannot_be_answered(kept: dict[type, History], setup: Setup, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no method 'prayer'; there are retrain"):
        recover_command(kept[Selective].path, {"1"}, "prayer", tmp_path / "out")
    with pytest.raises(HistoryError, match="fedrecover needs"):
        recover_command(kept[Selective].path, {"1"}, "fedrecover", tmp_path / "out", workers=0)
    bare = History.create(tmp_path / "bare", np.zeros(3, np.float32), initial_loss=1.0)
    bare.close()
    with pytest.raises(ConfigError, match="carries no configuration"):
        recover_command(tmp_path / "bare", {"1"}, "retrain", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_attackers_not_found_are_planned_for(kept: dict[type, History], setup: Setup, tmp_path: Path) -> None:
    bad, history = sorted(setup.attackers.clients)[:3], kept[Selective]
    rows, _ = recover_command(history.path, bad, "all", tmp_path / "out", unfound="10%", workers=0)
    decided = plan(history, bad, unfound=2)
    assert {r["method"]: r["rollback_round"] for r in rows}["crab-hardened"] == decided.rollback_round
    summary = json.loads((tmp_path / "out" / "crab-hardened" / "summary.json").read_text())
    assert summary["plan"]["unfound"] == 2
    assert verify_certificate(tmp_path / "out" / "crab-hardened" / "certificate.json") == []
    again = Recovery(
        "crab-hardened", history, bad, setup, saved=tmp_path / "out" / "crab-hardened", unfound=2
    )
    assert list(again) == []  # a share and the number that it comes to are one request
    with pytest.raises(ConfigError, match="unfound"):
        recover_command(history.path, bad, "retrain", tmp_path / "x", unfound="all", workers=0)
    assert not (tmp_path / "x").exists()


def test_settings_of_the_plan_and_of_the_method_can_be_changed(
    kept: dict[type, History], setup: Setup, tmp_path: Path
) -> None:
    bad, history = setup.attackers.clients, kept[Selective]
    changed = Recovery("crab-hardened", history, bad, setup, beta=0.0, settle=0)
    assert changed.plan == plan(history, bad, evidence="all", rule="prefix", beta=0.0)
    rows, _ = recover_command(
        history.path, bad, "crab-hardened", tmp_path / "out", changes=["beta=0.0", "settle=0"], workers=0
    )
    assert rows[1]["rollback_round"] == changed.plan.rollback_round
    with pytest.raises(ConfigError, match="name it by --method"):
        recover_command(history.path, bad, "all", tmp_path / "all", changes=["beta=0.1"])
    with pytest.raises(ConfigError, match="has no setting 'hope'; its settings are"):
        recover_command(history.path, bad, "retrain", tmp_path / "x", changes=["hope=1"], workers=0)
    with pytest.raises(ConfigError, match="another settle"):
        recover_command(history.path, bad, "crab-hardened", tmp_path / "out", changes=["beta=0.0"], workers=0)
