"""What `recover` leaves is what a page shows: curves, costs, and the costs that were foretold."""

from pathlib import Path

import pytest

from fedcrab import History
from fedcrab.experiment.config import load
from fedcrab.experiment.recover_command import recover_command
from fedcrab.experiment.setup import open_history, prepare, run
from fedcrab.report.page.build import find, page_facts
from fedcrab.report.page.methods import methods_of
from report.in_node import NODE, plans_in_node


@pytest.fixture(scope="module")
def recovered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    place = tmp_path_factory.mktemp("recoveries")
    setup = prepare(load("digits", ["rounds=6", "history.name=everything"]), workers=0)
    with open_history(setup, place / "h", resume=False) as history:
        assert len(list(run(setup, history))) == 6
    bad = sorted(setup.attackers.clients)
    recover_command(place / "h", bad, "all", place / "out", workers=0)
    return place / "out", bad


def test_every_step_is_a_point_of_the_curve(recovered: tuple[Path, list[str]]) -> None:
    out, bad = recovered
    history, place = find(out)
    facts = page_facts(history, (), place)
    assert sorted(facts["marked"]) == bad
    assert facts["recoveries"]["poisoned"]["ta"] > 0
    for row in facts["recoveries"]["methods"]:
        assert len(row["curve"]) == row["rounds"] + 1
        assert row["curve"][-1][0] == row["client_rounds"]
        assert row["curve"][-1][1] == pytest.approx(row["ta"])
        assert row["curve"][-1][2] == pytest.approx(row["asr"])


def test_what_was_foretold_is_what_it_took(recovered: tuple[Path, list[str]]) -> None:
    out, bad = recovered
    history, place = find(out)
    took = {r["method"]: r["client_rounds"] for r in page_facts(history, (), place)["recoveries"]["methods"]}
    for method in methods_of(history):
        if "rounds" not in method:
            continue
        foretold = sum(c not in bad for t in method["rounds"] for c in history.rounds[t].clients)
        assert method["refused"] is None
        assert took[method["name"]] >= foretold
        assert took[method["name"]] == foretold or method["name"] == "fedrecover"


@pytest.mark.skipif(NODE is None, reason="no node here to run the page's arithmetic")
def test_crab_takes_what_the_page_foretells(recovered: tuple[Path, list[str]]) -> None:
    out, bad = recovered
    history, place = find(out)
    facts = page_facts(history, (), place)
    took = {row["method"]: row for row in facts["recoveries"]["methods"]}
    for name, settings in facts["presets"].items():
        (foretold,) = plans_in_node(facts, [{"malicious": bad, **settings}])
        assert took[f"crab-{name}"]["client_rounds"] == foretold["cost"]["client_rounds"]
        assert took[f"crab-{name}"]["rollback_round"] == foretold["rollback_round"]


def test_a_history_without_vectors_says_what_it_does_not_allow(tmp_path: Path) -> None:
    setup = prepare(load("digits", ["rounds=2"]), workers=0)
    with open_history(setup, tmp_path / "h", resume=False) as history:
        list(run(setup, history))
    refused = {m["name"]: m["refused"] for m in methods_of(History.open(tmp_path / "h"))}
    assert refused["crab-hardened"] is None
    assert refused["fedrecover"] == "round 0 keeps no update vectors, which fedrecover needs"
