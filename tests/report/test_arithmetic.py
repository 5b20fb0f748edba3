"""The page's arithmetic, run by node, against `plan`: random histories, random questions."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedcrab import History, plan
from fedcrab.report import page_clients
from fedcrab.report.page_clients import clients_of_page
from fedcrab.report.page_data import history_data
from report.in_node import NODE, plans_in_node
from rollback.test_against_naive import record
from trials.trainings import Training, training

pytestmark = pytest.mark.skipif(NODE is None, reason="no node here to run the page's arithmetic")
SAME = ["malicious", "beta", "evidence", "rule", "candidates", "index", "rollback_round", "model", "warnings"]


def histories(place: Path, seeds: range, **settings: Any) -> Iterator[tuple[random.Random, History]]:
    for seed in seeds:
        rng = random.Random(seed)
        yield rng, record(random_training(rng, seed), place / str(seed), **settings)


def random_training(rng: random.Random, seed: int) -> Training:
    clients = rng.randint(2, 25)
    return training(
        seed=seed,
        rounds=rng.randint(1, 30),
        clients=clients,
        size=rng.choice([3, 40, 700]),
        taking_part=rng.choice([1, 0.8, 0.3]),
        kind=rng.choice(["spread", "close", "mimic", "sybils", "boosted"]),
        losses=rng.choice(["falling", "odd", "stalled"]),
        attackers=rng.randint(1, clients - 1),
    )


def questions(rng: random.Random, ids: list[str], everyone: int, rounds: int) -> list[dict[str, Any]]:
    named = [rng.sample(ids, rng.randint(1, min(len(ids), everyone - 1))) for _ in range(6)]
    return [
        {
            "malicious": malicious,
            "since": {c: rng.randrange(rounds) for c in malicious if rng.random() < 0.4},
            "beta": rng.choice([0, 0.1, 0.3, 1, 2.5]),
            "evidence": rng.choice(["all", "stored"]),
            "rule": rng.choice(["prefix", "last"]),
        }
        for malicious in named
    ]


def compare(history: History, rng: random.Random) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What plan says and what the page says; all that must be the same is."""
    clients = clients_of_page(history)
    inside = [client for client in history.clients if client in clients.clients]
    everyone, rounds = len(history.clients), len(history.rounds)
    asked = questions(rng, inside, everyone, rounds) if everyone > 1 else []
    for question, ours in zip(asked, plans_in_node(history_data(history, clients), asked), strict=True):
        theirs = plan(history, **question).to_table()
        assert {name: ours[name] for name in SAME} == {name: theirs[name] for name in SAME}
        assert ours["since"] == theirs.get("since", {})
        assert ours["cost"] == theirs["cost"]
        assert ours["shares"] == pytest.approx(theirs["shares"], abs=1e-8)
        counts = [[t, len(chosen)] for t, chosen in theirs["replay"]]
        assert [[t, len(shown) + others] for t, shown, others in ours["replay"]] == counts
        yield ours, theirs


@pytest.mark.parametrize("seeds", [range(12)])
def test_it_is_that_of_plan_bit_for_bit(seeds: range, tmp_path: Path) -> None:
    for rng, history in histories(tmp_path, seeds):
        for ours, theirs in compare(history, rng):
            assert ours["sensitivity"] == theirs["sensitivity"]
            assert ours["threshold"] == theirs["threshold"]
            assert [[t, shown] for t, shown, _ in ours["replay"]] == theirs["replay"]


@pytest.mark.parametrize("seeds", [range(20, 30)])
def test_sketched_rounds_to_rounding(seeds: range, tmp_path: Path) -> None:
    for rng, history in histories(tmp_path, seeds, gram_limit=4, sketch_size=16):
        for ours, theirs in compare(history, rng):
            assert ours["sensitivity"] == pytest.approx(theirs["sensitivity"], rel=1e-9, abs=1e-30)
            assert ours["threshold"] == pytest.approx(theirs["threshold"], rel=1e-9, abs=1e-30)


@pytest.mark.parametrize("seeds", [range(40, 50)])
def test_with_most_clients_left_out_to_rounding(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_clients, "MOST_NUMBERS", 50)
    monkeypatch.setattr(page_clients, "LEAST_CLIENTS", 6)
    left_out = 0
    for rng, history in histories(tmp_path, seeds):
        left_out += clients_of_page(history).others
        for ours, theirs in compare(history, rng):
            assert ours["sensitivity"] == pytest.approx(theirs["sensitivity"], rel=1e-9, abs=1e-30)
            assert ours["threshold"] == pytest.approx(theirs["threshold"], rel=1e-9, abs=1e-30)
    assert left_out > 20


@pytest.mark.parametrize("seeds", [range(60, 70)])
def test_marked_clients_without_room_of_their_own_count_together(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who are marked from the start stay marked, carried or not."""
    for name, value in (("MOST_NUMBERS", 50), ("LEAST_CLIENTS", 3), ("MOST_NAMED", 3)):
        monkeypatch.setattr(page_clients, name, value)
    together = 0
    for rng, history in histories(tmp_path, seeds):
        everyone = list(history.clients)
        marked = rng.sample(everyone, rng.randint(1, max(1, len(everyone) - 1)))
        clients = clients_of_page(history, (), marked)
        together += len(clients.together)
        assert {*clients.together} == {*marked} - {*clients.clients}
        for evidence in ("all", "stored"):
            settings = {"beta": rng.choice([0, 0.1, 1]), "evidence": evidence, "rule": "prefix"}
            own = [client for client in marked if client in clients.clients]
            first = rng.choice([0, len(history.rounds) // 2])
            settings["since"] = dict.fromkeys(marked, first) if first else {}
            (ours,) = plans_in_node(history_data(history, clients), [{"malicious": own, **settings}])
            if "refused" in ours:
                assert {*marked} == {*everyone}
                continue
            theirs = plan(history, marked, **settings).to_table()
            assert ours["sensitivity"] == pytest.approx(theirs["sensitivity"], rel=1e-9, abs=1e-30)
            assert ours["threshold"] == pytest.approx(theirs["threshold"], rel=1e-9, abs=1e-30)
            assert sorted(ours["malicious"]) == theirs["malicious"]
            assert [_nobody(words) for words in ours["warnings"]] == [
                _nobody(words) for words in theirs["warnings"]
            ]
            same = ("index", "rollback_round", "model", "cost")
            assert ours["since"] == theirs.get("since", {})
            assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
            counts = [[t, len(chosen)] for t, chosen in theirs["replay"]]
            assert [[t, len(shown) + others] for t, shown, others in ours["replay"]] == counts
            assert sum(ours["shares"].values()) == pytest.approx(sum(theirs["shares"].values()), abs=1e-8)
    assert together > 20


def _nobody(words: str) -> str:
    """A warning without those whom it names: the page names those who count together as one."""
    return re.sub(r"came from .*?(?=[.;:])", "", words)


@pytest.mark.slow
def test_it_is_that_of_plan_many_times(tmp_path: Path) -> None:
    test_it_is_that_of_plan_bit_for_bit(range(100, 400), tmp_path)


def test_what_cannot_be_decided_is_said(tmp_path: Path) -> None:
    history = record(training(rounds=3, clients=2), tmp_path / "h")
    facts = history_data(history, clients_of_page(history))
    settings = {"beta": 0.3, "evidence": "all", "rule": "prefix"}
    asked = [{"malicious": [], **settings}, {"malicious": ["0", "1"], **settings}]
    nobody, everybody = plans_in_node(facts, asked)
    assert nobody["refused"] == "Nobody is marked yet."
    assert "nobody is left" in everybody["refused"]


def test_a_client_that_was_only_turned_away(tmp_path: Path) -> None:
    from fedcrab import Rejection, Round

    trained = training(rounds=4, clients=4)
    with History.create(tmp_path / "h", trained.initial_model, initial_loss=2.3) as history:
        for r in trained.rounds:
            away = (Rejection("mallory {clients} $&", "the update has values that are not finite"),)
            fields = {name: getattr(r, name) for name in Round.__slots__}
            history.record(Round(**{**fields, "rejected": away}))
    question = {"malicious": ["1", "mallory {clients} $&"], "beta": 0.3, "evidence": "all", "rule": "prefix"}
    (ours,) = plans_in_node(history_data(history, clients_of_page(history)), [question])
    assert ours["warnings"] == plan(history, **question).to_table()["warnings"]
