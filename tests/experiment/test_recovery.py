"""Recovery by the harness: every method from the history it needs, saved, resumed, judged."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

from fedcrab import (
    Compact,
    ConfigError,
    DamagedError,
    Every,
    Everything,
    History,
    HistoryError,
    Selective,
    plan,
)
from fedcrab.certificate import certificate, verify_certificate
from fedcrab.detect.saved_audit import read_audit
from fedcrab.experiment import names, recovery
from fedcrab.experiment.config import load_config
from fedcrab.experiment.recovery import RecoveryRun, measure_outcome, poisoned, recover_to_end
from fedcrab.experiment.run import evaluate_command, recover_command
from fedcrab.experiment.setup import Setup, open_for_training, prepare, rerecord, run
from fedcrab.recover.cost import planned_costs
from fedcrab.recover.folder import read_results
from fedcrab.recover.methods import default_method
from fedcrab.recover.saved_steps import saved_steps
from fedcrab.rollback.decision import PRESETS
from fedcrab.simulate import SimulatedFleet
from trials.command import fedcrab

CHANGES = ["rounds=10", "local.learning_rate=0.3"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recovery")


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(load_config("digits", [*CHANGES, "history.name=everything"]), workers=0)


@pytest.fixture(scope="module")
def kept(place: Path, setup: Setup) -> dict[type, History]:
    with open_for_training(setup, place / "everything", resume=False) as history:
        assert len(list(run(setup, history))) == 10
    everything = History.open(place / "everything")
    others = {
        type(s): rerecord(everything, place / type(s).__name__, s) for s in (Selective(), Every(2), Compact())
    }
    return {Everything: everything, **others}


def test_recorded_anew_it_is_the_history_that_would_have_been(
    kept: dict[type, History], tmp_path: Path
) -> None:
    direct = prepare(load_config("digits", [*CHANGES, "history.name=selective"]), workers=0)
    with open_for_training(direct, tmp_path / "direct", resume=False) as history:
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
    before = measure_outcome(setup, poisoned(history))
    after = measure_outcome(setup, recover_to_end(method, history, bad, setup))
    assert before["asr"] > 0.5
    assert after["asr"] < 0.2 or method == "finetune"  # which leaves a backdoor where it is
    assert after["ta"] > 0.6
    assert (after["client_rounds"] > 0) != names.METHODS[method].needs_probe
    assert after["client_rounds"] <= 10 * 15
    assert after["rounds"] == len(recover_to_end(method, history, bad, setup).steps)


@pytest.mark.parametrize("method", names.METHODS)
def test_no_answer_shares_a_batch_order_with_the_history(
    method: str, kept: dict[type, History], setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses, jobs = set[int](), SimulatedFleet._jobs

    def noted(self, call, asked, round, epochs):
        found = jobs(self, call, asked, round, epochs)
        addresses.update(job.round for job in found)
        return found

    monkeypatch.setattr(SimulatedFleet, "_jobs", noted)
    history = kept[type(names.METHODS[method].selection)]
    fresh = RecoveryRun(method, history, setup.attackers.clients, setup)
    for _ in zip(fresh, range(3), strict=False):
        pass
    rounds = range(len(history.rounds))
    assert addresses.isdisjoint(rounds)
    same = RecoveryRun(method, history, setup.attackers.clients, setup, batches="history")
    addresses.clear()
    for _ in zip(same, range(3), strict=False):
        pass
    assert min(addresses, default=0) >= 0
    with pytest.raises(ConfigError, match="batches must be fresh or history"):
        RecoveryRun(method, history, setup.attackers.clients, setup, batches="stale")


def test_a_recovery_that_stopped_goes_on_with_the_same_bits(
    kept: dict[type, History], setup: Setup, tmp_path: Path
) -> None:
    bad = setup.attackers.clients
    for method in ("crab-hardened", "fedrecover", "replay"):
        history = kept[type(names.METHODS[method].selection)]
        straight = recover_to_end(method, history, bad, setup)
        for count, _ in enumerate(RecoveryRun(method, history, bad, setup, saved=tmp_path / method), start=1):
            if count == 3:
                break
        again = RecoveryRun(method, history, bad, setup, saved=tmp_path / method)
        assert again.done == 3
        rest = list(again)
        assert len(rest) == len(straight.steps) - 3
        np.testing.assert_array_equal(again.outcome().model, straight.model)
        done = RecoveryRun(method, history, bad, setup, saved=tmp_path / method)
        assert list(done) == []
        np.testing.assert_array_equal(done.outcome().model, straight.model)


def test_the_commands_write_and_judge(kept: dict[type, History], setup: Setup, tmp_path: Path) -> None:
    bad = setup.attackers.clients
    rows, refused = recover_command(kept[Selective].path, bad, "all", tmp_path / "out", workers=0)
    allowed = [name for name in names.METHODS if name not in refused]
    assert [r["method"] for r in rows] == ["poisoned", *allowed]
    assert {*allowed} >= {"retrain", "retrain-few", "finetune", "crab-paper", "crab-hardened"}
    assert set(refused) == {"federaser", "fedrecover", "replay", "subtract-and-distil"}
    assert "Everything()" in refused["fedrecover"]
    assert not (tmp_path / "out" / "fedrecover").exists()
    judged_rows = evaluate_command(tmp_path / "out", workers=0)
    by_name = {r["method"]: r for r in judged_rows}
    for row in rows[1:]:
        assert by_name[row["method"]]["ta"] == row["ta"]
        assert by_name[row["method"]]["client_rounds"] == row["client_rounds"]
    assert all(0 <= r["misr"] <= 1 and 0 <= r["misr_auc"] <= 1 for r in judged_rows)
    assert by_name["retrain"]["distance"] == 0
    assert {*by_name["retrain"]["trigger"]} == {"planted", "class", "ratio", "lift"}
    saved = read_audit(tmp_path / "out", kept[Selective].contents.head)
    assert saved is not None
    assert [row["model"] for row in saved["models"]] == ["final", *(r["method"] for r in judged_rows[1:])]
    summary = json.loads((tmp_path / "out" / "crab-paper" / "summary.json").read_text())
    assert summary["malicious"] == sorted(bad)
    _, results = read_results(tmp_path / "out" / "crab-paper")
    assert [r.method for r in results] == ["crab-paper"]


def test_a_history_is_opened_once_and_planned_once_per_preset(
    kept: dict[type, History], setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def counted(name: str, function: Callable) -> Callable:
        def call(*given, **settings):
            done.append(name)
            return function(*given, **settings)

        return call

    monkeypatch.setattr(recovery, "plan", counted("plan", plan))
    monkeypatch.setattr(certificate, "plan", counted("plan for a certificate", plan))
    monkeypatch.setattr(History, "open", counted("open", History.open))
    bad = setup.attackers.clients
    recover_command(kept[Selective], bad, "all", tmp_path / "out", workers=0)
    assert done == ["plan", "plan"]  # hardened and paper, for six methods and their certificates
    done.clear()
    recover_command(kept[Selective].path, bad, "crab-paper", tmp_path / "one", workers=0)
    assert done == ["open", "plan"]


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
    with pytest.raises(HistoryError, match="contains no recovery"):
        read_results(tmp_path)


def test_questions_that_cannot_be_answered(kept: dict[type, History], setup: Setup, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no method 'prayer'; there are retrain"):
        recover_command(kept[Selective].path, {"1"}, "prayer", tmp_path / "out")
    with pytest.raises(HistoryError, match="fedrecover needs"):
        recover_command(kept[Selective].path, {"1"}, "fedrecover", tmp_path / "out", workers=0)
    bare = History.create(tmp_path / "bare", np.zeros(3, np.float32), initial_loss=1.0)
    bare.close()
    with pytest.raises(ConfigError, match="has no configuration of simulated clients"):
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
    again = RecoveryRun(
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
    changed = RecoveryRun("crab-hardened", history, bad, setup, beta=0.0, settle=0)
    assert changed.plan == plan(history, bad, evidence="all", rule="prefix", beta=0.0)
    rows, _ = recover_command(
        history.path, bad, "crab-hardened", tmp_path / "out", changes=["beta=0.0", "settle=0"], workers=0
    )
    assert rows[1]["rollback_round"] == changed.plan.rollback_round
    with pytest.raises(ConfigError, match="choose it with --method"):
        recover_command(history.path, bad, "all", tmp_path / "all", changes=["beta=0.1"])
    with pytest.raises(ConfigError, match="has no setting 'hope'; it has no settings"):
        recover_command(history.path, bad, "retrain", tmp_path / "x", changes=["hope=1"], workers=0)
    with pytest.raises(ConfigError, match="different settle"):
        recover_command(history.path, bad, "crab-hardened", tmp_path / "out", changes=["beta=0.0"], workers=0)


def test_poison_that_a_recovery_begins_with_is_said(
    kept: dict[type, History], setup: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once for each plan, in words, before the first client is asked; nothing where none is left."""
    bad, history = setup.attackers.clients, kept[Selective]
    for beta, leaves in (("0.0", False), ("9.0", True)):
        recover_command(
            history.path, bad, "crab-hardened", tmp_path / beta, changes=[f"beta={beta}"], workers=0
        )
        said = " ".join(capsys.readouterr().err.split())
        assert ("crab-hardened: Poison stays in the model before round" in said) is leaves
        assert ("Rolling back to round 0 (beta 0" in said) is leaves


def by_command(history: History, bad: frozenset[str], out: Path, *more: str) -> CompletedProcess[str]:
    named = ("--malicious", ",".join(sorted(bad)), "--out", str(out), "--json", "--workers", "0")
    return fedcrab("recover", str(history.path), *named, *more, cwd=out.parent)


def test_replay_is_the_default_where_the_history_allows_it(
    kept: dict[type, History], setup: Setup, tmp_path: Path
) -> None:
    bad = setup.attackers.clients
    for kind, method in (
        (Compact, "replay"),
        (Everything, "replay"),
        (Selective, "crab-hardened"),
        (Every, "crab-hardened"),
    ):
        assert default_method(kept[kind])[0] == method
    done = by_command(kept[Compact], bad, tmp_path / "out")
    assert [row["method"] for row in json.loads(done.stdout)["methods"]] == ["poisoned", "replay"]
    assert "would allow" not in done.stderr
    other = by_command(kept[Selective], bad, tmp_path / "out")
    assert [row["method"] for row in json.loads(other.stdout)["methods"]] == ["poisoned", "crab-hardened"]
    assert "a history recorded with Compact() would allow replay" in other.stderr
    assert other.stderr.startswith("recovering with crab-hardened: ")


def test_the_pace_of_a_replay_is_set_by_the_command(
    kept: dict[type, History], setup: Setup, tmp_path: Path
) -> None:
    bad, history = setup.attackers.clients, kept[Compact]
    fixed = ["--set", "every=4", "--set", "asked=3", "--set", "settle=1"]
    done = by_command(history, bad, tmp_path / "fixed", *fixed)
    assert done.returncode == 0, done.stderr
    steps = [step["asked"] for step in saved_steps(tmp_path / "fixed" / "replay")]
    assert [len(asked) for asked in steps] == [0, 3, 0, 0, 0, 3, 0, 0, 0, 15]
    sure = by_command(history, bad, tmp_path / "sure", "--set", "trust=true", "--set", "every=1")
    assert sure.returncode == 0, sure.stderr
    assert len(saved_steps(tmp_path / "sure" / "replay")[1]["asked"]) == 2
    wrong = {
        "trust=maybe": "trust must be true or false",
        "every=0": "every must be",
        "asked=1.5": "asked must",
    }
    for change, told in wrong.items():
        refused = by_command(history, bad, tmp_path / "wrong", "--set", change)
        assert (refused.returncode, told in refused.stderr) == (2, True)
    assert not (tmp_path / "wrong").exists()


def test_the_planned_cost_counts_everybody_in_the_rounds_that_settle(
    kept: dict[type, History], setup: Setup
) -> None:
    bad, history = setup.attackers.clients, kept[Selective]
    decided = plan(history, bad)
    planned = planned_costs(decided, plan(history, bad, **PRESETS["paper"]))
    for method in ("crab-hardened", "crab-paper"):
        took = measure_outcome(setup, recover_to_end(method, history, bad, setup))
        assert planned[method].client_rounds == took["client_rounds"]
        assert planned[method].contact_rounds == took["contact_rounds"]
    assert planned["crab-hardened"].client_rounds > decided.cost["client_rounds"]
    assert planned["replay"].refused == "round 0 keeps no update vectors, which replay needs"


def test_the_planned_cost_of_a_replay_is_about_what_it_takes(kept: dict[type, History], setup: Setup) -> None:
    bad, history = setup.attackers.clients, kept[Compact]
    decided = plan(history, bad)
    planned = planned_costs(decided, decided)["replay"]
    took = measure_outcome(setup, recover_to_end("replay", history, bad, setup))
    for name in ("contact_rounds", "client_rounds"):
        assert took[name] / 2 <= getattr(planned, name) <= 2 * took[name]
