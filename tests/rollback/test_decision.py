"""The rollback decision by hand, its warnings, and the ways to ask for it wrongly."""

from pathlib import Path

import numpy as np
import pytest

from fedcrab import (
    PRESETS,
    ConfigError,
    Every,
    Everything,
    History,
    HistoryError,
    Rejection,
    Round,
    Selective,
    Updates,
    plan,
)
from fedcrab.history.gram import sketch_error
from trials.trainings import training

GOLDEN = [  # what clients a, b, m send in each round; a and b have one example each, m has two
    ([2, 0], [0, 0], [1, 0]),
    ([2, 0], [0, 0], [1, 4]),
    ([2, 0], [0, 0], [1, 8]),
]


def golden(path: Path, selection: object = None, aggregation: str = "fedavg") -> History:
    model = np.zeros(2, np.float32)
    selection = selection or Selective(rounds=1.0, clients=1.0)
    with History.create(
        path, model, initial_loss=1.0, selection=selection, aggregation=aggregation
    ) as history:
        for index, sent in enumerate(GOLDEN):
            updates = Updates(("a", "b", "m"), np.array(sent, np.float32), np.array([1.0, 1, 2]))
            step = np.average(updates.vectors, axis=0, weights=updates.weights).astype(np.float32)
            history.record(Round(index, model, updates, step, 1.0, 0.1))
            model = model + step
    return History.open(path)


def test_the_golden_run(tmp_path: Path) -> None:
    """Honest mean (1, 0) always; mean of all (1, 0), (1, 2), (1, 4): s = 0, 2, 4 and φ = 1, 1, 1."""
    found = plan(golden(tmp_path / "h"), {"m"}, beta=0.5)
    assert found.candidates == (0, 1, 2)
    assert found.sensitivity == pytest.approx([0, 0, 2])
    assert found.threshold == pytest.approx([0, 0.5, 1])
    assert (found.index, found.rollback_round) == (1, 1)
    assert found.replay == ((1, ("a", "b")), (2, ("a", "b")))
    assert found.cost["client_rounds"] == 4
    assert found.cost["retrain_client_rounds"] == 6
    assert found.shares == pytest.approx({"m": 1.0})


def test_the_golden_run_against_the_mean_of_the_kept_round_before(tmp_path: Path) -> None:
    """Ḡ is (1, 0), (1, 2), (1, 4), so φ is 1, then 0, then 2: the honest mean less the Ḡ before."""
    found = plan(golden(tmp_path / "h"), {"m"}, beta=0.5, evidence="stored", rule="last")
    assert found.sensitivity == pytest.approx([0, 0, 2])
    assert found.threshold == pytest.approx([0, 0.5, 0.5])
    assert found.index == 1


def test_shares_add_up_and_go_to_who_did_it(tmp_path: Path) -> None:
    """Round 2 alone: of a and m, only m pulls along (0, 1); a pulls along (1, 0)."""
    shares = plan(golden(tmp_path / "h"), {"a", "m"}).shares
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["m"] > shares["a"] > 0


def test_what_was_sent_before_since_counts_as_honest(tmp_path: Path) -> None:
    """S = 0, 2, 4 by round; from round 2 on m has done nothing that counts in any kept model."""
    history = golden(tmp_path / "h")
    late = plan(history, {"m"}, since=2)
    assert (late.rollback_round, late.sensitivity, late.since) == (2, (0, 0, 0), {"m": 2})
    assert late == plan(history, {"m"}, since={"m": 2})
    assert late.decision()["since"] == {"m": 2}
    assert late.replay == ((2, ("a", "b")),)
    assert [late.honest(t) for t in range(3)] == [("a", "b", "m"), ("a", "b", "m"), ("a", "b")]
    assert [late.askable(t) for t in range(3)] == [("a", "b")] * 3
    assert [late.is_malicious("m", t) for t in range(3)] == [False, False, True]
    assert plan(history, {"m"}, since=0) == plan(history, {"m"})
    assert "since" not in plan(history, {"m"}, since=0).to_table()


def test_beta_moves_the_decision(tmp_path: Path) -> None:
    history = golden(tmp_path / "h")
    assert [plan(history, {"m"}, beta).rollback_round for beta in (0, 0.5, 1, 100)] == [1, 1, 2, 2]


def test_prefix_stops_at_the_first_excess_and_last_does_not(tmp_path: Path) -> None:
    sent = [([1, 0], [1, 0], [-5, 0]), ([9, 0], [9, 0], [9, 0]), ([9, 0], [9, 0], [9, 0])]
    model = np.zeros(2, np.float32)
    with History.create(
        tmp_path / "h", model, initial_loss=1.0, selection=Selective(rounds=1.0, clients=1.0)
    ) as history:
        for index, rows in enumerate(sent):
            updates = Updates(("a", "b", "m"), np.array(rows, np.float32), np.ones(3))
            history.record(Round(index, model, updates, updates.vectors.mean(axis=0), 1.0, 0.1))
    assert plan(history, {"m"}, beta=0.3, rule="prefix").rollback_round == 0
    assert plan(history, {"m"}, beta=0.3, rule="last").rollback_round == 2


def test_the_plan_changes_nothing_on_disk(tmp_path: Path) -> None:
    history = golden(tmp_path / "h")
    before = {p: p.read_bytes() for p in (tmp_path / "h").rglob("*") if p.is_file()}
    plan(history, {"m"})
    assert {p: p.read_bytes() for p in (tmp_path / "h").rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("selection", [Every(2), Everything()])
def test_other_selections_can_be_planned_from_too(selection: object, tmp_path: Path) -> None:
    found = plan(golden(tmp_path / "h", selection), {"m"}, beta=0.5)
    assert found.candidates == ((0, 2) if isinstance(selection, Every) else (0, 1, 2))
    assert found.model == found.history.rounds[found.rollback_round].start


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"malicious": {"zoe"}}, "no client zoe in this history; it has a, b, m"),
        ({"malicious": {"a, b"}}, 'no client "a, b" in this history; it has a, b, m'),
        ({"malicious": set()}, "name at least one"),
        ({"malicious": {"a", "b", "m"}}, "nobody is left"),
        ({"beta": -0.1}, "beta must be"),
        ({"beta": float("nan")}, "beta must be"),
        ({"beta": float("inf")}, "beta must be"),
        ({"beta": "0.3"}, "beta must be"),
        ({"evidence": "some"}, "all, stored"),
        ({"rule": "first"}, "prefix, last"),
        ({"since": {"a": 1}}, "since: a is not named"),
        ({"since": 3}, "the history has rounds 0 to 2"),
        ({"since": {"m": -1}}, "rounds 0 to 2"),
        ({"since": {"m": True}}, "rounds 0 to 2"),
        ({"since": "1"}, "rounds 0 to 2"),
    ],
)
def test_a_wrong_question_gets_one_sentence(wrong: dict[str, object], word: str, tmp_path: Path) -> None:
    history = golden(tmp_path / "h")
    with pytest.raises(ConfigError, match=word) as error:
        plan(history, **{"malicious": {"m"}, **wrong})
    assert "\n" not in str(error.value)


def test_nothing_recorded_is_nothing_to_roll_back(tmp_path: Path) -> None:
    history = History.create(tmp_path / "h", np.zeros(2, np.float32), initial_loss=1.0)
    with pytest.raises(HistoryError, match="no round is recorded"):
        plan(history, {"m"})
    history.close()


def warned(found: object, word: str) -> bool:
    return any(word in warning for warning in found.warnings)


def test_warnings(tmp_path: Path) -> None:
    history = golden(tmp_path / "median", aggregation="median")
    assert warned(plan(history, {"m"}), "aggregated by median")
    left = plan(history, {"m"}, beta=100)
    assert left.poison_left == pytest.approx(0.5)  # s = 0 + 2 and φ = 1 + 1 in the two rounds before
    assert warned(left, "before round 2: 50.0% of all movement up to there came from m")
    assert warned(left, "Rolling back to round 1 (beta 0")
    assert not plan(golden(tmp_path / "mean"), {"m"}).warnings


def test_attackers_that_hide_from_the_selection_are_pointed_out(tmp_path: Path) -> None:
    model = np.zeros(3, np.float32)
    with History.create(tmp_path / "h", model, initial_loss=1.0) as history:
        for index in range(4):
            rows = np.array([[1, 0, 0], [1, 0, 0], [0, 0.5, 0]], np.float32)
            updates = Updates(("a", "b", "m"), rows, np.ones(3))
            history.record(Round(index, model, updates, np.array([1, 0, 0], np.float32), 1.0, 0.1))
    paper = plan(history, {"m"}, **PRESETS["paper"])
    assert max(paper.sensitivity) == 0
    assert warned(paper, "decide by evidence 'all'")
    assert warned(paper, "Poison stays in the model before round")
    assert paper.poison_left > 0 == plan(history, {"m"}).poison_left
    hardened = plan(history, {"m"}, **PRESETS["hardened"])
    assert hardened.sensitivity[-1] > 0


def test_a_client_that_was_always_turned_away_has_no_influence(tmp_path: Path) -> None:
    model = np.zeros(1, np.float32)
    updates = Updates(("a", "b"), np.ones((2, 1), np.float32), np.ones(2))
    with History.create(tmp_path / "h", model, initial_loss=1.0) as history:
        history.record(Round(0, model, updates, model + 1, 1.0, 0.1, (Rejection("z", "was late"),)))
    assert warned(plan(history, {"z"}), "Rejected from every round, so without influence: z")


def test_an_open_history_can_be_planned_from(tmp_path: Path) -> None:
    trained = training(rounds=3)
    history = History.create(tmp_path / "h", trained.initial_model, initial_loss=2.3)
    history.record(trained.rounds[0])
    found = plan(history, {"0"})
    assert found.rollback_round == 0
    assert warned(found, "not closed")
    history.close()
    assert plan(history, {"0"}).candidates == (0,)


def test_rounds_above_the_limit_are_sketched_within_the_stated_error(tmp_path: Path) -> None:
    trained = training(rounds=12, clients=60, size=2000, attackers=12, kind="boosted")
    histories = []
    for limit in (1000, 50):
        path = tmp_path / str(limit)
        with History.create(
            path, trained.initial_model, initial_loss=2.3, gram_limit=limit, seed=3
        ) as history:
            for r in trained.rounds:
                history.record(r)
        histories.append(History.open(path))
    for evidence in ("all", "stored"):
        exact, sketched = (plan(h, trained.malicious, evidence=evidence) for h in histories)
        error = 4 * sketch_error(256)
        assert sketched.sensitivity == pytest.approx(exact.sensitivity, rel=error)
        assert sketched.threshold == pytest.approx(exact.threshold, rel=error)
        assert warned(sketched, "standard error of 4.4%")
        assert not warned(exact, "sketched")
