"""Every method over Flower's clients does what it does over a fleet of one process."""

import json
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord
from loopback import by_app
from scenes import HASTY, SITES, Plain, context, everyone, grid, initial, recorded
from siteapp import client

from fedcrab import (
    Compact,
    ConfigError,
    Every,
    Everything,
    FedcrabError,
    History,
    HistoryError,
    Selective,
    plan,
)
from fedcrab.aggregate import fedavg
from fedcrab.flower import FlowerFleet, Recorder, app, recover_if_asked
from fedcrab.recover import AnswerFolder
from fedcrab.recover.methods import METHODS
from fedcrab.recover.saved_steps import saved_steps

honest = by_app(client.app)
KEPT = {Selective: Selective(rounds=1.0), Every: Every(2), Everything: Everything(), Compact: Compact()}


@pytest.fixture(scope="module")
def histories(tmp_path_factory) -> dict[type, History]:
    place = tmp_path_factory.mktemp("histories")
    return {kind: recorded(place / kind.__name__, grid(), selection=how) for kind, how in KEPT.items()}


@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if not row.needs_probe])
def test_a_method_over_flower_is_the_method(method: str, histories, tmp_path: Path) -> None:
    row = METHODS[method]
    history = histories[type(row.selection)]
    decided = plan(history, ["site-2"], **row.plan)
    settings = {**row.settings, "aggregate": fedavg(), "epochs": 2}
    steps = list(row.function(decided, Plain(), **settings))
    asked = set()

    def followed(site, message):
        asked.add(site)
        return honest(site, message)

    request = {"history": str(history.path), "malicious": "site-2", "method": method, "local-epochs": 2}
    over = grid(followed)
    found = recover_if_asked(
        over, context(mode="recover", recovered=str(tmp_path), **request), patience=HASTY
    )
    np.testing.assert_allclose(found.model, steps[-1].model, atol=1e-5)
    assert [s["clients"] for s in found.steps] == [list(s.clients) for s in steps]
    assert "site-2" not in asked
    assert json.loads((tmp_path / method / "summary.json").read_text())["malicious"] == ["site-2"]
    assert Plain().loss(found.model) < Plain().loss(history.final_model())


def test_an_anchor_keeps_the_answers_and_asks_once_more(histories, tmp_path: Path) -> None:
    history = histories[Selective]
    request = {"history": str(history.path), "malicious": "site-2", "local-epochs": 2, "anchor": True}
    found = recover_if_asked(
        grid(), context(mode="recover", recovered=str(tmp_path), **request), patience=HASTY
    )
    answers = AnswerFolder(tmp_path / "crab-hardened", history.charter.layout)
    assert len(answers.read()) == len(found.steps) + 1
    assert answers.has(found.model, [c for c in history.clients if c != "site-2"])


def test_clients_are_asked_as_the_training_asked_them(tmp_path: Path) -> None:
    seen = []

    def followed(site, message):
        seen.append(dict(message.content["config"]))
        return honest(site, message)

    recorder = Recorder(everyone(), tmp_path / "h", patience=HASTY)
    config = ConfigRecord({"lr": 0.1, "names": ["a", "b"], "secret": b"x"})
    recorder.start(grid(followed), initial(), num_rounds=2, train_config=config)
    assert seen[0] == {"lr": 0.1, "names": ["a", "b"], "secret": b"x", "server-round": 1}
    seen.clear()
    history = History.open(tmp_path / "h")
    fleet = FlowerFleet(grid(followed), history, patience=HASTY)
    fleet.train(history.model(0), SITES, round=1, epochs=3)
    assert seen[0] == {"lr": 0.1, "names": ["a", "b"], "secret": b"x", "server-round": 2, "local-epochs": 3}


def test_a_recovery_that_broke_off_goes_on(histories, tmp_path: Path) -> None:
    history = histories[Selective]
    request = {"history": str(history.path), "malicious": "site-2", "method": "retrain"}
    whole = recover_if_asked(
        grid(), context(mode="recover", recovered=str(tmp_path / "whole"), **request), patience=HASTY
    )
    counted: list[int] = []

    def breaks(site, message):
        counted.append(message.content["config"]["server-round"])
        if counted[-1] == 3:
            raise KeyboardInterrupt
        return honest(site, message)

    config = context(mode="recover", recovered=str(tmp_path / "parts"), **request)
    with pytest.raises(KeyboardInterrupt):
        recover_if_asked(grid(breaks), config, patience=HASTY)
    assert len(saved_steps(tmp_path / "parts" / "retrain")) == 2
    counted.clear()
    parts = recover_if_asked(grid(lambda s, m: (counted.append(0), honest(s, m))[1]), config, patience=HASTY)
    assert len(counted) == 2 * 7
    assert parts.model.tobytes() == whole.model.tobytes()


def test_the_ready_made_app_recovers(histories, tmp_path: Path) -> None:
    request = {"history": str(histories[Selective].path), "malicious": "site-2", "recovered": str(tmp_path)}
    patience = {"deadline": 2.0, "quorum": 0.5, "poll": 0.01}
    app(grid(), context(mode="recover", **request, **patience))
    assert (tmp_path / "crab-hardened" / "model.safetensors").is_file()
    with pytest.raises(ConfigError, match="only recovers"):
        app(grid(), context(mode="train", **request))


def test_replay_is_the_default_where_the_history_allows_it(histories, tmp_path: Path) -> None:
    for kind, method in ((Compact, "replay"), (Everything, "replay"), (Selective, "crab-hardened")):
        request = {"history": str(histories[kind].path), "malicious": "site-2", "method": ""}
        place = {"recovered": str(tmp_path / kind.__name__)}
        found = recover_if_asked(grid(), context(mode="recover", **request, **place), patience=HASTY)
        assert found.method == method
        assert (tmp_path / kind.__name__ / method / "model.safetensors").is_file()


def test_a_short_replay_asks_in_every_round(histories, tmp_path: Path) -> None:
    request = {"history": str(histories[Compact].path), "malicious": "site-2"}
    for pace, rounds in (({}, 0), ({"every": 2}, 1)):
        place = {"recovered": str(tmp_path / str(rounds))}
        run = context(mode="recover", **request, **place, **pace)
        found = recover_if_asked(grid(), run, patience=HASTY)
        assert sum(not step["asked"] for step in found.steps[1:]) == rounds


def test_the_pace_of_a_replay_is_in_the_configuration(histories, tmp_path: Path) -> None:
    request = {"history": str(histories[Compact].path), "malicious": "site-2", "recovered": str(tmp_path)}
    pace = {"every": 1, "asked": 3, "trust": True}
    found = recover_if_asked(grid(), context(mode="recover", **request, **pace), patience=HASTY)
    assert [len(step["asked"]) for step in found.steps][1:-1] == [3] * (len(found.steps) - 2)
    with pytest.raises(FedcrabError, match=r"different (trust|every|asked)"):
        recover_if_asked(grid(), context(mode="recover", **request), patience=HASTY)


def test_the_decision_can_be_changed(histories, tmp_path: Path) -> None:
    history = histories[Selective]
    request = {"history": str(history.path), "malicious": "site-2", "recovered": str(tmp_path / "out")}
    for changed in ({"unfound": "25%", "beta": 0.2}, {"unfound": 2, "beta": 0.2}):  # the same, said twice
        found = recover_if_asked(grid(), context(mode="recover", **request, **changed), patience=HASTY)
        assert found.plan.decision() == plan(history, ["site-2"], beta=0.2, unfound=2).decision()
    with pytest.raises(FedcrabError, match="another"):
        recover_if_asked(grid(), context(mode="recover", unfound="", **request), patience=HASTY)


def test_who_was_honest_first_counts_as_honest_until_then(histories, tmp_path: Path) -> None:
    history = histories[Selective]
    request = {"history": str(history.path), "recovered": str(tmp_path / "out")}
    for told in ({"malicious": "site-2@1"}, {"malicious": "site-2", "since": 1}):  # the same, said twice
        found = recover_if_asked(grid(), context(mode="recover", **request, **told), patience=HASTY)
        assert found.plan.decision() == plan(history, ["site-2"], since=1).decision()
    with pytest.raises(FedcrabError, match="another"):
        recover_if_asked(grid(), context(mode="recover", malicious="site-2", **request), patience=HASTY)


BAD = {
    "since": ({"since": "later"}, "takes a round such as 20"),
    "too late": ({"since": 99}, "the history has rounds 0 to"),
    "no client": ({"malicious": "site-9"}, "no client site-9"),
    "nobody": ({"malicious": ""}, "recovery needs 'malicious'"),
    "method": ({"method": "magic"}, "no method 'magic'; there are crab, retrain"),
    "place": ({"history": "nowhere"}, "nowhere"),
    "quorum": ({"quorum": 7.0}, "quorum must be"),
    "deadline": ({"deadline": "soon"}, "must be numbers"),
    "epochs": ({"local-epochs": 1.5}, "whole number"),
    "anchor": ({"anchor": "yes"}, "true or false"),
    "trust": ({"trust": True}, "method 'crab-hardened' has no setting 'trust'"),
    "needs": ({"method": "fedrecover"}, "fedrecover"),
    "beta": ({"beta": "much"}, "beta must be"),
    "unfound": ({"unfound": "some"}, r"unfound \(--undetected\) must be a number of clients"),
    "all unfound": ({"unfound": 7}, "leave at least one"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_one_sentence_and_leave_nothing(name: str, histories, tmp_path: Path) -> None:
    change, told = BAD[name]
    path = str(histories[Selective].path)
    request = {"history": path, "malicious": "site-2", "recovered": str(tmp_path / "out"), **change}
    with pytest.raises(FedcrabError, match=told):
        recover_if_asked(grid(), context(mode="recover", **request))
    assert not (tmp_path / "out").exists()


def test_another_kind_of_history_is_refused(tmp_path: Path) -> None:
    from scenes import plainly_recorded

    with pytest.raises(HistoryError, match="not recorded on Flower"):
        FlowerFleet(grid(), plainly_recorded(tmp_path / "h", rounds=1))


def test_training_is_left_alone() -> None:
    assert recover_if_asked(grid(), context(mode="train")) is None
    assert recover_if_asked(grid(), context()) is None


def test_the_command_line_says_where_such_a_history_is_recovered(histories, tmp_path: Path) -> None:
    from fedcrab.experiment.run import recover_command

    with pytest.raises(ConfigError, match=r"recorded on Flower, .* flwr run APP"):
        recover_command(histories[Selective].path, ["site-2"], "crab-hardened", tmp_path / "out")
    assert not (tmp_path / "out").exists()
