"""The traits of a method say what its function does; nothing asks for a method by its name."""

import re
from pathlib import Path

import numpy as np
import pytest

import fedcrab
from fedcrab import Everything, HistoryError, Plan, Selective, plan
from fedcrab.recover.methods import METHODS, REFERENCE, Method, rolls_back, title_of
from fedcrab.report.page_data import methods_of
from recover.scenes import Answering, SoftmaxProbe, record
from recover.test_conformance import CLIENTS, ILL, TASK
from recover.test_conformance import METHODS as CONFORMANCE

EPOCHS, START = 2, np.zeros(4, np.float32)
rows = pytest.mark.parametrize("row", METHODS.values(), ids=METHODS)


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Thirty rounds of which the attackers miss the first: there is something to roll back to."""
    fleet, path = Answering(TASK.answer), tmp_path_factory.mktemp("trained")
    history = record(path / "h", fleet, CLIENTS, 30, Everything(), model=START, share=0.8)
    found = plan(history, ILL, since=dict.fromkeys(ILL, 12))
    assert 0 < found.rollback_round < 29
    return found


def given(row: Method) -> dict:
    """What a method is called with."""
    return {**row.settings, "epochs": EPOCHS, **({"probe": SoftmaxProbe()} if row.needs_probe else {})}


def steps_of(row: Method, decided: Plan) -> list:
    return list(row.function(decided, Answering(TASK.answer), **given(row)))


@rows
def test_the_start_and_the_length_are_what_the_function_does(row: Method, decided: Plan) -> None:
    asked: list[bytes] = []

    def answer(model, *rest):
        asked.append(model.tobytes())
        return TASK.answer(model, *rest)

    steps = list(row.function(decided, Answering(answer), **given(row)))
    assert len(steps) == row.length(decided, row.settings)
    if len(steps[0].asked):
        assert asked[0] == row.start_model(decided).tobytes()
    if row.start == "rollback":
        assert steps[0].round >= decided.rollback_round
    assert row.rolls_back == (row.start == "rollback")


@rows
def test_the_rounds_told_before_are_the_rounds_asked(row: Method, decided: Plan) -> None:
    steps = steps_of(row, decided)
    if row.contacts is not None:
        everybody = [s.round for s in steps if s.asked and set(s.asked) == set(decided.askable(s.round))]
        first = decided.rollback_round if row.rolls_back else 0
        assert [t for t in row.contacts(decided.history, first) if decided.askable(t)] == everybody
    if row.by_plan:
        assert [(s.round, s.asked) for s in steps if s.asked] == [
            (t, tuple(clients)) for t, clients in decided.replay if clients
        ]


@rows
def test_a_history_is_refused_by_the_check_where_the_function_refuses(row: Method, tmp_path: Path) -> None:
    history = record(tmp_path / "h", Answering(TASK.answer), CLIENTS, 10, Selective(), model=START)
    decided = plan(history, ILL)
    refused = [False, False]
    try:
        if row.check is not None:
            row.check(history)
    except HistoryError:
        refused[0] = True
    try:
        row.function(decided, Answering(TASK.answer), **given(row))
    except HistoryError:
        refused[1] = True
    assert refused[0] == refused[1]


def test_the_page_has_the_costs_that_are_known_before(decided: Plan) -> None:
    shown = {row["name"]: row for row in methods_of(decided.history)}
    assert {*shown} == {*METHODS}
    assert all(row.start != "initial" or row.contacts for row in METHODS.values())
    assert shown[REFERENCE]["rounds"] == list(range(30))
    assert shown["crab-paper"]["preset"] == "paper"
    assert all(row["title"] == METHODS[name].title for name, row in shown.items())


def test_names_from_elsewhere_stay_as_they_are() -> None:
    assert (title_of("somebody's own"), rolls_back("somebody's own")) == ("somebody's own", False)
    assert len({row.title for row in METHODS.values()}) == len(METHODS)


def test_every_method_is_in_the_conformance_table() -> None:
    assert {*METHODS} <= {*CONFORMANCE}


def test_nothing_asks_for_a_method_by_its_name() -> None:
    asking = re.compile(r"""starts[wW]ith\(["'(]+(crab|retrain["'-])|[!=]==?\s*["'](crab-|retrain|replay)""")
    root = Path(fedcrab.__file__).parent
    found = [
        f"{path.relative_to(root)}:{number}"
        for path in sorted([*root.rglob("*.py"), *root.rglob("*.js")])
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if asking.search(line)
    ]
    assert found == []
