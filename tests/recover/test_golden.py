"""Each method by hand: clients a and b honest, m malicious, two parameters.

The history of the first three: M_0 = (0, 0); a has one example, b three, m four.

    round    a sends      b sends       m sends
    0        (3, 4), 5    (0, 2),  2    (1, 1)
    1        (0, 1), 1    (6, 8), 10    (-9, 0)      and the norms behind what is sent
    2        (2, 0), 2    (0, 4),  4    (0, -9)

In recovery a sends (1, 0) and b sends (0, 2), whatever they are given. p_a = 1/4, p_b = 3/4.
"""

from pathlib import Path

import numpy as np
import pytest

from fedcrab import ConfigError, Every, Everything, History, Round, Selective, Updates, plan
from fedcrab.aggregate import trimmed_mean
from fedcrab.recover import (
    CRAB_PRESETS,
    Capped,
    crab,
    federaser,
    fedrecover,
    finetune,
    retrain,
    retrain_few,
    subtract_and_distil,
)
from recover.scenes import Answering, record, scripted

SENT = [
    {"a": ([3, 4], 1), "b": ([0, 2], 3), "m": ([1, 1], 4)},
    {"a": ([0, 1], 1), "b": ([6, 8], 3), "m": ([-9, 0], 4)},
    {"a": ([2, 0], 1), "b": ([0, 4], 3), "m": ([0, -9], 4)},
]
RENEWED = {"a": ([1, 0], 1), "b": ([0, 2], 3)}
ALL = Selective(rounds=1.0, clients=1.0)


def renewing() -> Answering:
    return Answering(lambda model, client, t, epochs: RENEWED[client])


def planned(path: Path, selection: object = ALL) -> tuple[History, object]:
    history = scripted(path / "h", SENT, selection)
    return history, plan(history, {"m"}, beta=0)


def models(steps: list) -> list[list[float]]:
    return [step.model.tolist() for step in steps]


def test_crab_as_published(tmp_path: Path) -> None:
    """Round 0: ¼·5·(1, 0) + ¾·2·(0, 1) = (1.25, 1.5).

    Round 1: ¼·1·(1, 0) + ¾·10·(0, 1) = (0.25, 7.5). Round 2: ¼·2·(1, 0) + ¾·4·(0, 1) = (0.5, 3).
    """
    _, decided = planned(tmp_path)
    steps = list(crab(decided, renewing(), **CRAB_PRESETS["paper"]))
    assert models(steps) == [[1.25, 1.5], [1.5, 9], [2, 12]]
    assert [step.lengths for step in steps] == [(5, 2), (1, 10), (2, 4)]
    assert [step.path for step in steps] == [2.75, 7.75, 3.5]
    assert [step.round for step in steps] == [0, 1, 2]
    assert all(step.clients == step.asked == step.exact == ("a", "b") for step in steps)
    assert all(step.examples == (1, 3) and not step.capped and not step.estimated for step in steps)


def test_crab_from_where_the_plan_says(tmp_path: Path) -> None:
    """From M_2, which is (⅛·3 + ⅜·0 + ½·1, ⅛·4 + ⅜·2 + ½·1) = (0.875, 1.75) and then

    (⅛·0 + ⅜·6 - ½·9, ⅛·1 + ⅜·8) = (-2.25, 3.125): (-1.375, 4.875). Then round 2 adds (0.5, 3).
    """
    history, _ = planned(tmp_path)
    late = plan(history, {"m"}, beta=1000)
    assert late.rollback_round == 2
    assert models(list(crab(late, renewing(), **CRAB_PRESETS["paper"]))) == [[-0.875, 7.875]]


def test_crab_with_gap_and_cap(tmp_path: Path) -> None:
    """Rounds 0 and 2 are kept. Round 0 counts itself alone: a to 5, a ratio of 5 held at 3; b to 2.

    That is ¼·3·(1, 0) + ¾·1·(0, 2) = (0.75, 1.5). Round 2 counts rounds 1 and 2: a to 1 + 2 = 3, a ratio of
    3; b to 10 + 4 = 14, a ratio of 7 held at 3: ¼·3·(1, 0) + ¾·3·(0, 2) = (0.75, 4.5).
    """
    _, decided = planned(tmp_path, Every(2))
    steps = list(crab(decided, renewing(), gap=True, cap=3, settle=0))
    assert models(steps) == [[0.75, 1.5], [1.5, 6]]
    assert [step.lengths for step in steps] == [(3, 2), (3, 6)]
    assert [step.capped for step in steps] == [(Capped("a", 5.0),), (Capped("b", 7.0),)]


def test_a_gap_counts_a_round_without_the_client_as_its_nearest_earlier_norm(tmp_path: Path) -> None:
    """Rounds 0 and 3 are kept; a sends 5, nothing, 1, 2 and b nothing, 10, nothing, 4.

    In round 3, over rounds 1 to 3: a 5 + 1 + 2 = 8, b 10 + 10 + 4 = 24. In round 0, a alone: 5.
    """
    first, second, third = SENT
    sent = [
        {"a": first["a"], "m": first["m"]},
        {"b": second["b"], "m": second["m"]},
        {"a": second["a"], "m": second["m"]},
        third,
    ]
    history = scripted(tmp_path / "h", sent, Every(3))
    steps = list(crab(plan(history, {"m"}, beta=0), renewing(), gap=True, cap=100, settle=0))
    assert [(step.clients, step.lengths) for step in steps] == [(("a",), (5,)), (("a", "b"), (8, 24))]


def test_crab_settles(tmp_path: Path) -> None:
    """The last two rounds as renewed: ¼·(1, 0) + ¾·(0, 2) = (0.25, 1.5) each."""
    _, decided = planned(tmp_path)
    steps = list(crab(decided, renewing(), gap=False, cap=100, settle=2))
    assert models(steps) == [[1.25, 1.5], [1.5, 3], [1.75, 4.5]]
    assert steps[2].lengths == (1, 2)


def test_federaser(tmp_path: Path) -> None:
    """Rounds 0 and 2 are kept. Round 0 as stored: ¼·(3, 4) + ¾·(0, 2) = (0.75, 2.5), nobody asked.

    Round 2: ¼·2·(1, 0) + ¾·4·(0, 1) = (0.5, 3), after ⌈5/2⌉ = 3 epochs.
    """
    _, decided = planned(tmp_path, Every(2))
    fleet = renewing()
    steps = list(federaser(decided, fleet, epochs=5))
    assert models(steps) == [[0.75, 2.5], [1.25, 5.5]]
    assert fleet.asked == [(2, ("a", "b"), 3)]
    assert [step.asked for step in steps] == [(), ("a", "b")]
    assert steps[0].estimated == ("a", "b")


def test_federaser_of_every_other_round_of_a_full_history(tmp_path: Path) -> None:
    """The same rounds, so the same models."""
    _, decided = planned(tmp_path, Everything())
    assert models(list(federaser(decided, renewing(), epochs=5, every=2))) == [[0.75, 2.5], [1.25, 5.5]]


def test_retrain(tmp_path: Path) -> None:
    """¼·(1, 0) + ¾·(0, 2) = (0.25, 1.5) in each of three rounds, from M_0."""
    _, decided = planned(tmp_path)
    fleet = renewing()
    steps = list(retrain(decided, fleet, epochs=5))
    assert models(steps) == [[0.25, 1.5], [0.5, 3], [0.75, 4.5]]
    assert fleet.asked == [(t, ("a", "b"), 5) for t in range(3)]
    assert steps[0].lengths == (1, 2)


def test_fedrecover(tmp_path: Path) -> None:
    """Honest clients go half way to their goals, a to (4, 0), b to (0, 4); m sends (8, 8). Weights 1, 1, 2.

    The history goes M = 0, 4.5, 7.875, … along (1, 1): a sends (2, 0), (-0.25, -2.25), (-1.9375, -3.9375), …

    The honest mean goes half way to (2, 2): ŵ = 0, 1, 1.5, 1.75, 1.875, 1.9375 along (1, 1). Exact are
    rounds 0, 1 (warm-up) and 3 (the second after it). The pair of round 1 is Δw = 1 - 4.5 = -3.5 and
    Δg = -Δw/2 = 1.75 along (1, 1), so σ = -1/2 and H̃ = -I/2, the truth: round 2 estimates for a
    (-1.9375, -3.9375) - (1.5 - 7.875)/2·(1, 1) = (1.25, -0.75), half way from (1.5, 1.5) to (4, 0).
    """
    goals = {"a": np.array([4.0, 0]), "b": np.array([0.0, 4])}

    def answer(model, client, t, epochs):
        return ([8, 8], 2) if client == "m" else ((goals[client] - model) / 2, 1)

    model = np.zeros(2, np.float32)
    history = record(tmp_path / "h", Answering(answer), ["a", "b", "m"], 5, Everything(), model=model)
    assert history.model(2).tolist() == [7.875, 7.875]
    fleet = Answering(answer)
    steps = list(fedrecover(plan(history, {"m"}), fleet, warm_up=2, correct_every=2, tune=0, pairs=1))
    assert [t for t, _, _ in fleet.asked] == [0, 1, 3]
    assert [bool(step.estimated) for step in steps] == [False, False, True, False, True]
    for step, expected in zip(steps, [1, 1.5, 1.75, 1.875, 1.9375], strict=True):
        assert step.model == pytest.approx([expected, expected], rel=1e-6)
    assert steps[2].lengths[0] == pytest.approx(np.hypot(1.25, 0.75))
    assert [p.round for p in steps[2].pairs["a"]] == [1]  # round 0 moved nothing: no pair
    assert steps[1].pairs["b"][0].moved.tolist() == [-3.5, -3.5]
    assert steps[1].pairs["b"][0].changed.tolist() == [1.75, 1.75]


def test_settling_asks_everybody_honest_and_a_rule_gets_as_many_as_it_needs(tmp_path: Path) -> None:
    """Of a, b, c and m only a is selected; the last round and a rule that needs three ask a, b and c."""
    model = np.zeros(1, np.float32)
    with History.create(
        tmp_path / "h", model, initial_loss=1.0, selection=Selective(rounds=1.0, clients=0.25)
    ) as history:
        for t in range(3):
            rows = np.array([[3], [2], [1], [-1]], np.float32)
            updates = Updates(("a", "b", "c", "m"), rows, np.ones(4))
            history.record(Round(t, model, updates, rows.mean(axis=0), 1.0, 0.1))
    decided, asked = plan(history, {"m"}), []

    class Noting:
        def train(self, model, clients, *, round, epochs=None):
            asked.append(tuple(clients))
            return Updates(tuple(clients), np.ones((len(clients), 1), np.float32), np.ones(len(clients)))

    list(crab(decided, Noting(), settle=1))
    assert asked == [decided.replay[0][1], decided.replay[1][1], ("a", "b", "c")]
    assert len(decided.replay[0][1]) == 1
    asked.clear()
    list(crab(decided, Noting(), settle=1, everyone=False))
    assert {len(clients) for clients in asked} == {1}
    asked.clear()
    list(crab(decided, Noting(), settle=0, aggregate=trimmed_mean(trim=1)))
    assert asked == [("a", "b", "c")] * 3


def test_finetune_goes_on_from_the_poisoned_model(tmp_path: Path) -> None:
    """Two more rounds of a and b, (1/4, 3/2) each, in rounds of their own."""
    history = scripted(tmp_path / "h", SENT, ALL)
    steps = list(finetune(plan(history, {"m"}), renewing(), rounds=2))
    assert [s.round for s in steps] == [3, 4]
    assert [s.asked for s in steps] == [("a", "b")] * 2
    expected = history.final_model() + 2 * np.array([0.25, 1.5])
    assert steps[-1].model.tolist() == pytest.approx(expected.tolist())


def test_subtraction_takes_out_what_the_malicious_client_added(tmp_path: Path) -> None:
    """M_T less its weighted part of each round; before ``since`` it counts as honest. Then one pass."""
    history = scripted(tmp_path / "h", SENT, Everything())
    parts = []
    for sent in SENT:
        whole = sum(examples for _, examples in sent.values())
        update, examples = sent.get("m", ([0, 0], 0))
        parts.append(np.array(update, float) * examples / whole)
    half = Halving()
    for since, gone in ((0, sum(parts)), (1, sum(parts[1:]))):
        decided = plan(history, {"m"}, since=since)
        first, second = subtract_and_distil(decided, renewing(), probe=half, passes=1)
        assert (first.round, second.round, first.asked, second.asked) == (3, 4, (), ())
        left = history.final_model() - gone
        assert first.model.tolist() == pytest.approx(left.tolist(), rel=1e-6)
        middle = (left + history.final_model()) / 2
        assert second.model.tolist() == pytest.approx(middle.tolist(), rel=1e-6)
    with pytest.raises(ConfigError, match="examples of the server"):
        subtract_and_distil(plan(history, {"m"}), renewing())


class Halving:
    """A server whose examples bring the student half of the way to the teacher."""

    def distil(self, student, teacher, *, temperature, rate, epoch):
        return (student + teacher) / np.float32(2)


def test_retraining_with_few_asks_so_many(tmp_path: Path) -> None:
    history = scripted(tmp_path / "h", SENT, ALL)
    steps = list(retrain_few(plan(history, {"m"}), renewing(), per_round=1))
    assert [len(s.asked) for s in steps] == [1, 1, 1]
    alone = {("a",): np.array([1.0, 0.0]), ("b",): np.array([0.0, 2.0])}
    assert steps[-1].model.tolist() == pytest.approx(sum(alone[s.asked] for s in steps).tolist())
