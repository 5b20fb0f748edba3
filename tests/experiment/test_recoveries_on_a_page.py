"""What `recover` leaves is what a page shows: curves, costs, and the costs that were foretold."""

from pathlib import Path

import pytest

from fedcrab import History, plan
from fedcrab.experiment.config import load_config
from fedcrab.experiment.run import recover_command
from fedcrab.experiment.setup import open_for_training, prepare, run
from fedcrab.recover.cost import planned_asks, planned_costs
from fedcrab.recover.methods import METHODS
from fedcrab.report.page import find, page_data
from fedcrab.report.page_data import methods_of
from fedcrab.rollback.decision import PRESETS
from report.in_node import NODE, plans_in_node


@pytest.fixture(scope="module")
def recovered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    place = tmp_path_factory.mktemp("recoveries")
    setup = prepare(load_config("digits", ["rounds=6", "history.name=everything"]), workers=0)
    with open_for_training(setup, place / "h", resume=False) as history:
        assert len(list(run(setup, history))) == 6
    bad = sorted(setup.attackers.clients)
    recover_command(place / "h", bad, "all", place / "out", workers=0)
    return place / "out", bad


def test_every_step_is_a_point_of_the_curve(recovered: tuple[Path, list[str]]) -> None:
    out, bad = recovered
    history, place = find(out)
    facts = page_data(history, (), place)
    assert sorted(facts["marked"]) == bad
    assert facts["recoveries"]["poisoned"]["ta"] > 0
    for row in facts["recoveries"]["methods"]:
        assert len(row["curve"]) == row["rounds"] + 1
        assert row["curve"][-1][0] == row["client_rounds"]
        assert row["curve"][-1][1] == pytest.approx(row["ta"])
        assert row["curve"][-1][2] == pytest.approx(row["asr"])


def test_what_was_planned_is_what_it_took(recovered: tuple[Path, list[str]]) -> None:
    out, bad = recovered
    history, place = find(out)
    took = {row["method"]: row for row in page_data(history, (), place)["recoveries"]["methods"]}
    costs = planned_costs(plan(history, bad), plan(history, bad, **PRESETS["paper"]))
    assert {*costs} == {*took} == {*METHODS}
    for name, cost in costs.items():
        assert cost.refused is None
        assert took[name]["client_rounds"] >= cost.client_rounds
        if name not in ("fedrecover", "replay"):  # which decide while they run
            assert took[name]["client_rounds"] == cost.client_rounds
            assert took[name]["contact_rounds"] == cost.contact_rounds
        assert cost.share_of_retrain == cost.client_rounds / costs["retrain"].client_rounds


@pytest.mark.skipif(NODE is None, reason="no node here to run the page's arithmetic")
@pytest.mark.parametrize("since", [0, 3])
def test_the_page_plans_the_same_costs(recovered: tuple[Path, list[str]], since: int) -> None:
    out, bad = recovered
    history, _ = find(out)
    begun = dict.fromkeys(bad, since)
    asked = [{"malicious": bad, "since": begun, **PRESETS[name]} for name in ("hardened", "paper")]
    hardened, paper = plans_in_node(page_data(history, bad), asked)
    decided = plan(history, bad, since=since)
    for name in METHODS:
        ours = planned_asks(
            name, plan(history, bad, since=since, **PRESETS["paper"]) if name == "crab-paper" else decided
        )
        assert (paper if name == "crab-paper" else hardened)["asks"][name] == ours


@pytest.mark.skipif(NODE is None, reason="no node here to run the page's arithmetic")
def test_crab_takes_what_the_page_foretells(recovered: tuple[Path, list[str]]) -> None:
    out, bad = recovered
    history, place = find(out)
    facts = page_data(history, (), place)
    took = {row["method"]: row for row in facts["recoveries"]["methods"]}
    for name, settings in facts["presets"].items():
        (foretold,) = plans_in_node(facts, [{"malicious": bad, **settings}])
        assert took[f"crab-{name}"]["client_rounds"] == sum(foretold["asks"][f"crab-{name}"])
        assert took[f"crab-{name}"]["rollback_round"] == foretold["rollback_round"]


def test_a_history_without_vectors_says_what_it_does_not_allow(tmp_path: Path) -> None:
    setup = prepare(load_config("digits", ["rounds=2", "history.name=selective"]), workers=0)
    with open_for_training(setup, tmp_path / "h", resume=False) as history:
        list(run(setup, history))
    refused = {m["name"]: m["refused"] for m in methods_of(History.open(tmp_path / "h"))}
    assert refused["crab-hardened"] is None
    assert refused["fedrecover"] == "round 0 keeps no update vectors, which fedrecover needs"
    assert refused["replay"] == "round 0 keeps no update vectors, which replay needs"
