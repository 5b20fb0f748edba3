"""Recovery on the sites of a FLARE job: by every method, killed and resumed, refused where it must be."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flare_job import Outcome, Persistor, Site, answer, failure, run
from flare_scenes import apart, initial, plain, pulled, sites, trained

import fedcrab
from fedcrab import ConfigError, History
from fedcrab.nvflare import Recovery
from fedcrab.recover.folder import RecoveryFolder
from fedcrab.recover.methods import METHODS

ATTACK = -8.0
ROUNDS = 6


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that site-2 poisons from the first round on."""
    place = tmp_path_factory.mktemp("poisoned")
    attacked = sites(site_2=pulled("site-2", ATTACK))
    for name, selection in (("h", fedcrab.Compact(bits=8)), ("all", fedcrab.Everything())):
        outcome, _ = trained(place / name, attacked, rounds=ROUNDS, selection=selection)
        assert outcome.failures == []
    return place


@pytest.fixture(scope="module")
def honest() -> dict[str, Any]:
    """The model that FLARE's own FedAvg makes of the honest sites."""
    return plain({name: site for name, site in sites().items() if name != "site-2"}, rounds=ROUNDS)


def recover(
    history: Path, out: Path, who: dict[str, Site] | None = None, malicious: Any = "site-2", **settings: Any
) -> Outcome:
    given = {"deadline": 20.0, "attempts": 1, **settings}
    controller = Recovery(str(history), malicious, str(out), **given)
    controller._task_check_period = 0.01
    return run(controller, who or sites(site_2=never("site-2")))


def never(name: str) -> Site:
    """A site that must not be asked."""

    def site(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        raise AssertionError(f"{name} was asked in round {round}")

    return site


def model(out: Path, history: Path) -> dict[str, Any]:
    opened = History.open(history)
    layout = opened.charter.layout
    return dict(layout.views(RecoveryFolder.open(out).model(opened)))


def test_retraining_is_flare_s_fedavg_without_the_attacker(
    tmp_path: Path, poisoned: Path, honest: dict[str, Any]
) -> None:
    assert recover(poisoned / "h", tmp_path, method="retrain").failures == []
    assert apart(model(tmp_path / "retrain", poisoned / "h"), honest) < 1e-5
    summary = json.loads((tmp_path / "retrain" / "summary.json").read_text())
    assert summary["malicious"] == ["site-2"]


# Fine-tuning leaves a poison where it is; a job has no examples of the server's to distil with.
ABLE = [name for name, row in METHODS.items() if name != "finetune" and not row.needs_probe]


@pytest.mark.parametrize("method", ABLE)
def test_every_method_recovers(tmp_path: Path, poisoned: Path, honest: dict[str, Any], method: str) -> None:
    outcome = recover(poisoned / "all", tmp_path, method=method, epochs=2)
    assert outcome.failures == []
    found = model(tmp_path / method, poisoned / "all")
    layout = History.open(poisoned / "all").charter.layout
    ruined = dict(layout.views(History.open(poisoned / "all").final_model()))
    assert apart(found, honest) < 0.3 * apart(ruined, honest)


def test_a_history_that_keeps_updates_is_replayed_unless_told(tmp_path: Path, poisoned: Path) -> None:
    asked: list[int] = []

    def counting(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        asked.append(round)
        return pulled("site-1")(round, params, meta)

    outcome = recover(poisoned / "h", tmp_path, sites(site_1=counting, site_2=never("site-2")))
    assert outcome.failures == []
    assert (tmp_path / "replay" / "model.safetensors").exists()
    assert len(asked) < ROUNDS


def test_what_was_sent_before_the_attack_counts_as_honest(tmp_path: Path, poisoned: Path) -> None:
    for name, given in (("since", {"since": "4"}), ("at", {"malicious": "site-2@4"})):
        assert recover(poisoned / "all", tmp_path / name, method="crab", **given).failures == []
    one, other = (model(tmp_path / n / "crab-hardened", poisoned / "all") for n in ("since", "at"))
    assert apart(one, other) == 0
    steps = sorted(int(p.stem) for p in (tmp_path / "at" / "crab-hardened" / "steps").iterdir())
    assert steps == [4, 5]


def test_a_recovery_that_was_killed_goes_on(tmp_path: Path, poisoned: Path) -> None:
    def dying(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        return failure() if round == 4 else pulled("site-1")(round, params, meta)

    assert recover(poisoned / "h", tmp_path / "whole", method="retrain").failures == []
    cut = {"who": sites(site_1=dying, site_2=never("site-2")), "quorum": 1.0, "method": "retrain"}
    outcome = recover(poisoned / "h", tmp_path / "cut", **cut)
    assert "2 of 3 sites gave a usable answer (failed: EXECUTION_EXCEPTION)" in outcome.failures[0]
    asked: list[int] = []

    def counting(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        asked.append(round)
        return pulled("site-1")(round, params, meta)

    again = sites(site_1=counting, site_2=never("site-2"))
    assert recover(poisoned / "h", tmp_path / "cut", again, method="retrain").failures == []
    assert asked == [4, 5]
    whole, cut_ = (model(tmp_path / name / "retrain", poisoned / "h") for name in ("whole", "cut"))
    assert apart(whole, cut_) == 0


def test_a_round_goes_on_without_a_site_that_fails_or_is_away(tmp_path: Path, poisoned: Path) -> None:
    def hostile(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        return answer({**params, "w": np.full_like(params["w"], np.inf)}, 10)

    here = sites(site_1=hostile, site_2=never("site-2"))
    del here["site-4"]
    outcome = recover(poisoned / "h", tmp_path / "few", here, method="retrain")
    assert "1 of 3 sites gave a usable answer" in outcome.failures[0]
    outcome = recover(poisoned / "h", tmp_path / "some", here, method="retrain", quorum=0.3)
    assert outcome.failures == []
    steps = (tmp_path / "some" / "retrain" / "steps").glob("*.json")
    assert all(json.loads(path.read_text())["step"]["clients"] == ["site-3"] for path in steps)
    alone = {"site-3": here["site-3"]}
    outcome = recover(poisoned / "h", tmp_path / "alone", alone, method="retrain")
    assert "2 of 3 sites take no part in this job (site-1, site-4)" in outcome.failures[0]


def test_a_site_that_does_not_answer_is_not_waited_for_longer_than_told(
    tmp_path: Path, poisoned: Path
) -> None:
    def killed(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        return pulled("site-1")(round, params, meta) if round == 0 else None

    here, began = sites(site_1=killed, site_2=never("site-2")), time.monotonic()
    outcome = recover(poisoned / "h", tmp_path, here, method="retrain", deadline=3.0)
    assert outcome.failures == []
    assert time.monotonic() - began < 3 * 5  # once, not in each of the five rounds


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"method": "magic"}, "no method 'magic'"),
        ({"malicious": "site-9"}, "site-9"),
        ({"method": "retrain", "settings": {"speed": 3}}, "no setting 'speed'"),
        ({"since": "99"}, "99"),
    ],
)
def test_a_request_that_cannot_be_is_one_sentence_and_nothing_written(
    tmp_path: Path, poisoned: Path, settings: dict[str, Any], told: str
) -> None:
    outcome = recover(poisoned / "h", tmp_path / "out", **settings)
    assert told in outcome.failures[0]
    assert not (tmp_path / "out").exists()


def test_an_unfinished_history_is_recovered_only_when_told_to(tmp_path: Path) -> None:
    trained(tmp_path / "h", sites(site_2=pulled("site-2", ATTACK)), keep_open=True)
    outcome = recover(tmp_path / "h", tmp_path / "out", method="retrain")
    assert "unfinished=True" in outcome.failures[0]
    assert not (tmp_path / "out").exists()
    assert recover(tmp_path / "h", tmp_path / "out", method="retrain", unfinished=True).failures == []


def test_the_recovered_model_is_saved_where_the_job_saves(tmp_path: Path, poisoned: Path) -> None:
    saved = Persistor(**initial())
    controller = Recovery(
        str(poisoned / "h"), "site-2", str(tmp_path), method="crab", persistor_id="persistor"
    )
    assert run(controller, sites(site_2=never("site-2")), saved).failures == []
    assert apart(saved.saved, model(tmp_path / "crab-hardened", poisoned / "h")) == 0


def test_sites_are_told_what_the_training_told_them(tmp_path: Path) -> None:
    heard: list[tuple[int, dict[str, Any]]] = []

    def hearing(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        heard.append((round, {k: v for k, v in meta.items() if "prox" in k or k == "total_rounds"}))
        return pulled("site-1")(round, params, meta)

    who = sites(site_1=hearing, site_2=pulled("site-2", ATTACK))
    assert trained(tmp_path / "h", who, rounds=3, job={"fedprox_mu": 0.3})[0].failures == []
    trained_with, heard[:] = list(heard), []
    again = sites(site_1=hearing, site_2=never("site-2"))
    assert recover(tmp_path / "h", tmp_path / "out", again, method="retrain").failures == []
    assert heard == trained_with
    assert len(heard[0][1]) > 1  # the coefficient among it


def test_settings_are_checked_where_the_job_is_made() -> None:
    for given, told in (
        ({"malicious": ""}, "names no site"),
        ({"malicious": "a", "quorum": 2.0}, "quorum"),
        ({"malicious": "a", "attempts": 0}, "attempts"),
    ):
        with pytest.raises(ConfigError, match=told):
            Recovery("h", recovered="out", **given)


def test_detect_and_plan_read_the_history_as_any_other(poisoned: Path) -> None:
    history = History.open(poisoned / "h")
    plan = fedcrab.plan(history, {"site-2"})
    assert plan.rollback_round == 0
    assert "site-2" in fedcrab.detect.ledger(history).scores
