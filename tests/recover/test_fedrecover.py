"""FedRecover: close to training again with far less computed, and careful where estimates go wrong."""

from pathlib import Path

import numpy as np
import pytest

from fedcrab import Compact, Everything, History, Plan, plan
from fedcrab.aggregate import fedavg
from fedcrab.recover import fedrecover, retrain
from fedcrab.recover.fedrecover import Schedule, abnormality_threshold, scheduled
from fedcrab.seeds import rng_for
from recover.scenes import Answering, Quadratics, record, scripted

CLIENTS, ILL = list("abcdefgh"), frozenset("cf")
CONVEX = Quadratics(size=12, ill=ILL)


def trained(path: Path, answer, rounds: int = 40, size: int = 12) -> Plan:
    start = np.zeros(size, np.float32)
    return plan(record(path / "h", Answering(answer), CLIENTS, rounds, Everything(), model=start), ILL)


@pytest.fixture(scope="module")
def convex(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return trained(tmp_path_factory.mktemp("convex"), CONVEX.answer)


def last(steps) -> np.ndarray:
    return list(steps)[-1].model


def test_on_convex_losses_it_comes_close_to_retraining_at_a_fraction_of_the_work(convex: Plan) -> None:
    scratch, fleet = Answering(CONVEX.answer), Answering(CONVEX.answer)
    goal = last(retrain(convex, scratch))
    steps = list(fedrecover(convex, fleet))
    poisoned = np.linalg.norm(convex.history.final_model() - goal)
    assert np.linalg.norm(steps[-1].model - goal) < 0.01 * poisoned
    assert fleet.client_rounds() < 0.4 * scratch.client_rounds()
    assert not any(step.fixed for step in steps)
    exact = [step.round for step in steps if step.exact]
    assert exact == [0, 1, 2, 3, 8, 13, 18, 23, 28, 33, 38, 39]


def test_estimates_do_the_work_and_not_the_exact_rounds_alone(convex: Plan) -> None:
    """Without the Hessian's part, stored updates in place of estimates end up elsewhere."""
    goal, history = last(retrain(convex, Answering(CONVEX.answer))), convex.history
    model, exact = history.initial_model(), scheduled(40, 2, None, None, 0)
    for t in range(40):
        stored = history.updates(t).without(ILL)
        fresh = Answering(CONVEX.answer).train(model, stored.clients, round=t)
        used = fresh if exact.is_exact(t) else stored
        model = model + np.average(used.vectors, axis=0, weights=used.weights).astype(np.float32)
    estimated = last(fedrecover(convex, Answering(CONVEX.answer), tune=0))
    assert np.linalg.norm(estimated - goal) < 0.1 * np.linalg.norm(model - goal)


def test_an_estimate_that_explodes_is_computed_instead(tmp_path: Path) -> None:
    """The attack begins after the warm-up: until then both runs are close, and updates that jump from place

    to place look like an enormous curvature, which then multiplies a great distance.
    """
    before, attacked = Quadratics(size=3), Quadratics(size=3, ill=ILL)

    def jumpy(model, client, t, epochs):
        update, examples = (attacked if t >= 8 else before).answer(model, client, t, epochs)
        return update + 0.3 * np.sin(3000 * model), examples

    decided = trained(tmp_path, jumpy, rounds=24, size=3)
    fleet = Answering(jumpy)
    steps = list(fedrecover(decided, fleet, warm_up=4, correct_every=6, tune=1))
    fixed = [(step, r) for step in steps for r in step.fixed]
    assert any("above" in r.reason for _, r in fixed)
    assert all(r.client in step.asked and r.client in step.exact for step, r in fixed)
    tau = abnormality_threshold(decided.history, ILL, 1e-6)
    for step in steps:
        longest = tau * np.sqrt(3) * (1 + 1e-6)
        lengths = dict(zip(step.clients, step.lengths, strict=True))
        assert all(lengths[c] <= longest for c in step.estimated)
    goal = last(retrain(decided, Answering(jumpy)))
    assert np.linalg.norm(steps[-1].model - goal) < 3


def test_a_client_seen_for_the_first_time_is_asked(tmp_path: Path) -> None:
    """Client z appears in round 6, after the warm-up: there is no pair of it to estimate from."""
    task = Quadratics(size=3, ill=frozenset("m"))

    def sent(t: int) -> dict[str, tuple[object, float]]:
        names = "amz" if t >= 6 else "am"
        return {c: task.answer(np.full(3, t / 10, np.float32), c, t) for c in names}

    history = scripted(tmp_path / "h", [sent(t) for t in range(9)], Everything())
    fleet = Answering(task.answer)
    steps = list(fedrecover(plan(history, {"m"}), fleet, warm_up=3, correct_every=100, tune=0))
    assert (steps[6].estimated, steps[6].exact) == (("a",), ("z",))
    assert steps[6].fixed[0].reason == "there is no pair to estimate from"
    assert steps[7].estimated == ("a", "z")


def test_as_many_pairs_as_asked_for_are_held(tmp_path: Path) -> None:
    decided = trained(tmp_path, Quadratics(size=5, ill=ILL).answer, rounds=12, size=5)
    for memory in (1, 3):
        steps = list(
            fedrecover(decided, Answering(Quadratics(size=5, ill=ILL).answer), pairs=memory, warm_up=5)
        )
        held = [p.round for p in steps[4].pairs["a"]]
        assert held == list(range(5))[-memory:]
        assert all(len(of_client) <= memory for s in steps for of_client in s.pairs.values())


def test_every_round_corrected_is_training_again(tmp_path: Path) -> None:
    task = Quadratics(size=5, ill=ILL)
    decided = trained(tmp_path, task.answer, rounds=8, size=5)
    exact = last(fedrecover(decided, Answering(task.answer), correct_every=1))
    np.testing.assert_array_equal(exact, last(retrain(decided, Answering(task.answer))))


def test_it_begins_at_the_rollback_model(tmp_path: Path) -> None:
    """Attackers are honest until round 20: only what comes after it is recovered, half of the schedule."""
    history = trained(tmp_path, CONVEX.answer, rounds=40).history
    late = plan(history, ILL, since=dict.fromkeys(ILL, 20))
    assert late.rollback_round == 20
    asked = []
    for options, first in (({}, 20), ({"rollback": False}, 0)):
        fleet = Answering(CONVEX.answer)
        steps = list(fedrecover(late, fleet, **options))
        assert [s.round for s in steps] == list(range(first, 40))
        asked.append(fleet.client_rounds())
    assert asked[0] < 0.7 * asked[1]
    np.testing.assert_array_equal(  # asked in every round it is training on from there
        last(fedrecover(late, Answering(CONVEX.answer), correct_every=1)), _onwards(late, 20)
    )


def _onwards(decided: Plan, first: int) -> np.ndarray:
    """The honest clients from the history's model of a round on, in plain loops."""
    model, rule = decided.history.model(first), fedavg()
    for t in range(first, len(decided.history.rounds)):
        updates = Answering(CONVEX.answer).train(model, decided.askable(t), round=t)
        model = model + rule(updates.vectors, updates.weights)
    return model


def test_from_a_compact_history_it_is_almost_the_same(tmp_path: Path) -> None:
    fleet, start = Answering(CONVEX.answer), np.zeros(12, np.float32)
    exact, packed = (
        plan(record(tmp_path / str(n), fleet, CLIENTS, 40, kept, model=start), ILL)
        for n, kept in enumerate((Everything(), Compact(bits=8)))
    )
    goal = last(retrain(exact, Answering(CONVEX.answer)))
    poisoned = np.linalg.norm(exact.history.final_model() - goal)
    found = last(fedrecover(packed, Answering(CONVEX.answer)))
    assert np.linalg.norm(found - goal) < 0.02 * poisoned


def test_the_usual_schedule_is_scaled_with_the_rounds() -> None:
    assert scheduled(40, 2, None, None, None) == Schedule(40, 4, 5, 2)
    assert scheduled(1000, 2, None, None, None) == Schedule(1000, 20, 10, 5)
    assert scheduled(5, 2, None, None, None) == Schedule(5, 3, 2, 1)
    assert scheduled(40, 2, 7, None, 0) == Schedule(40, 7, 5, 0)


def test_the_threshold_by_hand(tmp_path: Path) -> None:
    """Honest numbers of round 0: 1, 2, 3, 4 and of round 1: 5, 1, 1, 1; m's 99 do not count.

    None may exceed it: 5. A quarter of four is one, which may: 3 in round 0, 1 in round 1. Half: 2 and 1.
    """
    rounds = [
        {"a": ([1, -2], 1), "b": ([3, -4], 1), "m": ([99, 99], 1)},
        {"a": ([5, 1], 1), "b": ([-1, 1], 1), "m": ([99, 99], 1)},
    ]
    history = scripted(tmp_path / "h", rounds, Everything())
    found = {share: abnormality_threshold(history, {"m"}, share) for share in (0, 0.2, 0.25, 0.5)}
    assert found == {0: 5, 0.2: 5, 0.25: 3, 0.5: 2}


def test_the_threshold_against_a_plain_sort(tmp_path: Path) -> None:
    rng = rng_for(1)
    rounds = [{c: (rng.normal(size=50), 1) for c in "abcd"} for _ in range(3)]
    history: History = scripted(tmp_path / "h", rounds, Everything())
    for tolerance in (0, 0.01, 0.1, 0.5, 0.99):
        expected = 0.0
        for sent in rounds:
            numbers = sorted(abs(np.float32(x)) for c in "abc" for x in sent[c][0])
            enough = [v for v in numbers if sum(w > v for w in numbers) <= tolerance * len(numbers)]
            expected = max(expected, float(min(enough)))
        assert abnormality_threshold(history, {"d"}, tolerance) == pytest.approx(expected)
