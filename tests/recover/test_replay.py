"""The corrected replay against a naive version with all vectors, against retraining, and under attack."""

from itertools import pairwise
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import trim_mean

from fedcrab import Compact, Everything, Plan, plan
from fedcrab.aggregate import median, trimmed_mean
from fedcrab.recover import replay, retrain
from fedcrab.recover.correction import correction_of
from fedcrab.recover.pacing import STRAYED
from fedcrab.recover.replay import predicted_error
from fedcrab.recover.schedule import LONGEST
from fedcrab.seeds import rng_for
from fedcrab.types import Layout, Updates
from recover.naive_estimate import naive_estimate
from recover.scenes import Answering, Quadratics, record

CLIENTS, ILL = list("abcdefghijkl"), frozenset("be")
TASK = Quadratics(size=30, ill=ILL)
ROUNDS = 22  # with fewer than 20, each has contact


def trained(path: Path, selection: object, share: float = 1.0) -> Plan:
    model = np.zeros(TASK.size, np.float32)
    history = record(path / "h", Answering(TASK.answer), CLIENTS, ROUNDS, selection, model=model, share=share)
    return plan(history, ILL, beta=0)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return trained(tmp_path_factory.mktemp("everything"), Everything())


def naive(decided: Plan, *, trust: bool, every: int | None, asked: int | None, settle: int | None) -> list:
    """Every model of a replay by the mean, and who was asked; by the formulas, one vector at a time."""
    history = decided.history
    x = history.model(decided.rollback_round).astype(float)
    pairs, least, found, rounds = [], 2 if trust else 5, [], ROUNDS - decided.rollback_round
    uneven, own, last_asked, answers = 0.0, {}, {}, 0
    before, doubted = 0.0, False
    recent, nearer, apart = [], 0.0, 0.0
    next_contact, count = decided.rollback_round + 1, asked or least
    for t in range(decided.rollback_round, ROUNDS):
        sent = history.updates(t)
        stored = {
            c: (u.astype(float), n) for c, u, n in zip(sent.clients, sent.vectors, sent.weights, strict=True)
        }
        stored = {c: u for c, u in stored.items() if c not in ILL}
        total = sum(n for _, n in stored.values())
        mean = sum(n * u for u, n in stored.values()) / total
        v = x - history.model(t)
        first = predicted = naive_estimate(pairs, v, mean)
        if first is not None:
            second = np.mean(recent, axis=0) - mean
            share = min(max(nearer / apart, 0), 1) if apart else 1
            predicted = share * first + (1 - share) * second
        order = rng_for(history.charter.seed, "replay", t).permutation(len(stored))
        waiting = sorted((sorted(stored)[i] for i in order), key=lambda c: last_asked.get(c, -1))
        settled = 1 if settle is None else settle
        number = count if trust or asked else min(count, max(3, ceil(len(stored) / 2)))
        new, travelled = outside(pairs, v), np.linalg.norm(x - history.initial_model())
        turned = new > 0.35 and new * np.linalg.norm(v) > 0.1 * travelled
        contact = t >= next_contact or (every is None and turned)
        if trust and every is None and asked is None:
            usual, to_come = (naive_usual(r, decided.rollback_round, settled) for r in (None, t))
            left = 5 * (1 + len(usual)) // 2 - answers - 2 * len(to_come)
            late = ROUNDS - t <= rounds // 4
            number = min(2 + ceil((left - 2) / (1 + len(to_come))), left) if late else 2
            contact = contact and left >= 2
        if t >= ROUNDS - settled:
            half = trust and settle is None and (uneven <= 0.6 or rounds < 30)
            contact, number = True, ceil(len(stored) / 2) if half else len(stored)
        jump = before and np.linalg.norm(mean) > 8 * before
        ignored = every is None and asked is None and (doubted or jump)
        contact, number = contact or ignored, len(stored) if ignored else number
        everybody = contact and number >= len(stored)
        drawn = sorted(stored) if everybody else sorted(waiting[:number]) if contact else []
        drawn = drawn if v.any() else []
        common, fresh = predicted, {}
        e = {c: part * 0.93 ** (t - last_asked[c]) if trust else part for c, part in own.items()}
        if drawn:
            fresh = {c: TASK.answer(x.astype(np.float32), c, t)[0] for c in drawn}
            r = np.array([fresh[c] - stored[c][0] - e.get(c, 0) for c in drawn])
            if trust:
                common = np.average(r, axis=0, weights=[stored[c][1] for c in drawn])
            else:
                usual = np.median([np.linalg.norm(row) for row in r])
                r = np.array([row * min(1, 2 * usual / np.linalg.norm(row)) for row in r])
                common = trim_mean(r, max(1, int(0.4 * len(r))) / len(r) + 1e-9, axis=0)
            spread2 = sum(np.linalg.norm(row - common) ** 2 for row in r) / max(len(r) - 1, 1)
            noise2 = spread2 / len(r) * (1 - len(r) / len(stored))
            if first is not None and t > max(last_asked.values()) + 1:
                difference = first - second
                nearer = nearer / 2 + (common - second) @ difference
                apart = apart / 2 + difference @ difference
            new = common
            if predicted is not None:
                new = common - predicted
                common = predicted + max(0.5, 1 - noise2 / np.linalg.norm(new) ** 2) * new
            changes = {c: row + e.get(c, 0) for c, row in zip(drawn, r, strict=True)}
            fresh = fresh if everybody else {c: stored[c][0] + changes[c] for c in drawn}
        step = np.zeros_like(x)
        for c, (u, n) in stored.items():
            shift = 0 if common is None else common + e.get(c, 0)
            step += n / total * fresh.get(c, u + shift)
        if drawn:
            missed = np.sqrt(max(np.linalg.norm(new) ** 2 - noise2, 0))
            room = 0.36 * travelled / missed if missed else 9
            most = max(len(drawn), min(5, max(3, ceil(len(stored) / 2)), len(stored)))
            varies = np.sqrt(spread2 * (1 / len(stored) + (1 - most / len(stored)) / most))
            before = np.linalg.norm(mean)
            reached = np.linalg.norm(x + step - history.initial_model())
            doubted = doubted or (t - decided.rollback_round > 5 and varies > 0.2 * reached)
            uneven = np.sqrt(spread2) / np.linalg.norm(step)
            tapered = 1 + (ROUNDS - t) // max(2, min(4, rounds // 7))
            next_contact = t + (every or min(max(min(1 + int(room), 5), 3), tapered))
            wanted = ceil(min(spread2 / np.linalg.norm(step) ** 2, 3 if trust else 10))
            count = asked or max(least, wanted)
            pairs = [*pairs, (v, common)][-3:]
            recent = [*recent, mean + common][-3:]
            own |= {c: change - common for c, change in changes.items()}
            last_asked |= dict.fromkeys(drawn, t)
            answers += 0 if ignored else len(drawn)
        x = x + step
        found.append((x, tuple(drawn)))
    return found


def naive_usual(t: int | None, first: int, settled: int) -> list[int]:
    """The usual contacts after round t, or all of them."""

    def gap(t: int) -> int:
        return min(5, 1 + (ROUNDS - t) // max(2, min(4, (ROUNDS - first) // 7)))

    at = first + 1 if t is None else t + gap(t)
    return [at, *naive_usual(at, first, settled)] if at < ROUNDS - settled else []


def outside(pairs: list, v: np.ndarray) -> float:
    """The share of v, by length, outside the span of the pairs' first vectors."""
    if not pairs:
        return 1.0
    axes, _ = np.linalg.qr(np.array([w for w, _ in pairs]).T)
    return np.linalg.norm(v - axes @ (axes.T @ v)) / np.linalg.norm(v) if v.any() else 0.0


@pytest.mark.parametrize("share", [1.0, 0.7])
@pytest.mark.parametrize("selection", [Everything(), Compact()], ids=["everything", "compact"])
@pytest.mark.parametrize(
    "options",
    [
        {"trust": False, "every": 3, "asked": 5, "settle": 2},
        {"trust": True, "every": 2, "asked": 2, "settle": 1},
        {"trust": False, "every": None, "asked": None, "settle": None},
        {"trust": True, "every": None, "asked": None, "settle": None},
        {"trust": True, "every": None, "asked": None, "settle": 0},
    ],
    ids=["fixed", "trusting", "usual", "usual-trusting", "unsettled"],
)
def test_it_equals_the_naive_version(options: dict, selection: object, share: float, tmp_path: Path) -> None:
    decided = trained(tmp_path, selection, share)
    steps, expected = list(replay(decided, Answering(TASK.answer), **options)), naive(decided, **options)
    assert [s.asked for s in steps] == [asked for _, asked in expected]
    for step, (model, _) in zip(steps, expected, strict=True):
        np.testing.assert_allclose(step.model, model, rtol=1e-3, atol=1e-3 * np.abs(model).max())


@pytest.mark.parametrize("rule", [None, median(), trimmed_mean(trim=1)], ids=["mean", "median", "trimmed"])
def test_with_every_client_asked_it_is_retraining(rule, everything: Plan) -> None:
    """Deterministic clients: the stored updates of round 0 are what they would answer."""
    ours = list(replay(everything, Answering(TASK.answer), aggregate=rule, every=1, asked=99))
    again = list(retrain(everything, Answering(TASK.answer), aggregate=rule))
    assert ours[0].asked == ()
    assert [s.model.tobytes() for s in ours] == [s.model.tobytes() for s in again]


def test_it_ends_near_retraining_and_asks_few(everything: Plan) -> None:
    fleet = Answering(TASK.answer)
    steps = list(replay(everything, fleet))
    again = list(retrain(everything, Answering(TASK.answer)))[-1].model
    poisoned = everything.history.final_model()
    assert np.linalg.norm(steps[-1].model - again) < 0.1 * np.linalg.norm(poisoned - again)
    assert fleet.client_rounds() < 0.5 * 10 * ROUNDS
    assert len(steps[-1].asked) == 10  # it settles with every honest participant


def test_contacts_are_dense_at_the_end_and_the_steps_say_what_was_measured(everything: Plan) -> None:
    steps = list(replay(everything, Answering(TASK.answer)))
    contacts = [s.round for s in steps if s.asked]
    gaps = [b - a for a, b in pairwise(contacts)]
    assert contacts[0] == 1
    assert gaps[-1] <= 2 < gaps[0] <= max(gaps) <= LONGEST
    assert len(contacts) < len(steps)
    errors = [s.replay.error for s in steps]
    assert errors == sorted(errors)
    assert errors[-1] > 0
    for step in steps[1:]:
        measured = step.replay.standard_error if step.asked else STRAYED * step.replay.missed
        expected = measured**2 + step.replay.spread**2 / len(step.clients)
        assert step.replay.step_error**2 == pytest.approx(expected)
        assert step.asked or not step.replay.standard_error


def test_the_end_says_how_far_it_can_be_trusted(everything: Plan) -> None:
    last = list(replay(everything, Answering(TASK.answer)))[-1]
    start, layout = everything.history.model(0), everything.history.charter.layout
    sentence = predicted_error(last.replay, start, last.model, layout)
    assert sentence.startswith(f"predicted distance to retraining: {last.replay.error:.3g}, ")
    assert "\n" not in sentence
    assert predicted_error(last.replay, start, start, layout).count("%") == 0


def test_one_liar_among_those_asked_moves_it_little(everything: Plan) -> None:
    """Its answers are a thousand times too long; with the mean of two they would be the model."""

    def lying(model, client, t, epochs):
        update, examples = TASK.answer(model, client, t, epochs)
        return (1000 * np.ones_like(update) if client == "c" and t < ROUNDS - 1 else update), examples

    honest, lied = (
        list(replay(everything, Answering(answer), settle=0, every=2, asked=5))[-2].model
        for answer in (TASK.answer, lying)
    )
    fooled = list(replay(everything, Answering(lying), settle=0, every=2, trust=True))[-2].model
    assert np.linalg.norm(lied - honest) < 0.02 * np.linalg.norm(fooled - honest)


def test_others_are_asked_in_place_of_those_who_do_not_answer(everything: Plan) -> None:
    def sometimes(model, client, t, epochs):
        return None if client in "acd" else TASK.answer(model, client, t, epochs)

    steps = list(replay(everything, Answering(sometimes), every=3, asked=5, settle=0))
    for step in (s for s in steps if s.asked):
        assert len(set(step.asked) - set("acd")) == 5
        assert {r.client for r in step.dropped} == set(step.asked) & set("acd")
        assert set(step.clients) == set(CLIENTS) - ILL


def test_without_any_answer_the_stored_updates_are_replayed_and_the_step_says_so(everything: Plan) -> None:
    steps = list(replay(everything, Answering(lambda *_: None)))
    for step in steps:
        stored = everything.history.updates(step.round).without(ILL)
        assert step.clients == stored.clients == step.estimated
        assert len(step.dropped) == len(step.asked)


def test_an_incident_in_the_middle_is_replayed_from_there(tmp_path: Path) -> None:
    def late(model, client, t, epochs):
        shift = 30 if client in ILL and t >= 8 else 0
        update, examples = Quadratics(size=30).answer(model, client, t, epochs)
        return update + shift, examples

    model = np.zeros(30, np.float32)
    history = record(tmp_path / "h", Answering(late), CLIENTS, ROUNDS, Everything(), model=model)
    decided = plan(history, ILL, beta=1.0)
    assert decided.rollback_round > 0
    steps = list(replay(decided, Answering(late)))
    assert [s.round for s in steps] == list(range(decided.rollback_round, ROUNDS))
    assert steps[0].asked == ()


def test_the_mean_is_robust_and_what_is_the_clients_own_is_kept() -> None:
    layout = Layout.flat(2)
    stored = Updates(tuple("abc"), np.zeros((3, 2), np.float32), np.ones(3))
    fresh = Updates(tuple("abc"), np.array([[1, 0], [0, 1], [300, 400]], np.float32), np.ones(3))
    found = correction_of(fresh, stored, {}, None, trust=False, layout=layout)
    assert found is not None
    np.testing.assert_allclose(found.vector, [1, 1])  # the median of (1, 0), (0, 1) and (1.2, 1.6)
    np.testing.assert_allclose(found.own("c", layout), [0.2, 0.6], rtol=1e-6)
    assert found.standard_error == 0  # everybody answered
    assert correction_of(fresh.only("ab"), stored, {}, None, trust=False, layout=layout) is None
    trusted = correction_of(fresh.only("ab"), stored, {}, None, trust=True, layout=layout)
    assert trusted is not None
    np.testing.assert_allclose(trusted.vector, [0.5, 0.5])
    own = {"a": np.array([1, -1], np.float32), "b": np.array([0, 0], np.float32)}
    again = correction_of(fresh.only("ab"), stored, own, None, trust=True, layout=layout)
    assert again is not None
    np.testing.assert_allclose(again.vector, [0, 1])  # of (1, 0) - (1, -1) and (0, 1)
    np.testing.assert_allclose(again.own("a", layout), [1, -1])


def test_what_is_new_counts_by_how_sure_it_is() -> None:
    layout = Layout.flat(2)
    stored = Updates(tuple("abcdef"), np.zeros((6, 2), np.float32), np.ones(6))
    predicted = np.array([1, 0], np.float32)

    def gain(*heights: float) -> float:
        rows = np.array([[1, height] for height in heights], np.float32)
        fresh = Updates(tuple("abc"), rows, np.ones(3))
        found = correction_of(fresh, stored, {}, predicted, trust=False, layout=layout)
        assert found is not None
        return float(found.vector[1]) / sorted(heights)[1]

    assert gain(1, 1, 1) == 1  # they agree
    assert gain(0, 0.1, 0.9) == pytest.approx(0.5)  # they do not
    assert gain(0.9, 1, 1.2) == pytest.approx(1 - (0.05 / 2) / 3 * 0.5)


def exploding(model: np.ndarray, client: str, t: int, epochs: object = None) -> tuple[np.ndarray, float]:
    """Saturating steps towards a goal; from round 20 on attackers push the model away, farther each time."""
    goal = rng_for(7, client).normal(size=len(model))
    push = 10.0 ** (t - 18) if client in ILL and t >= 20 else 0.0
    far = goal - model
    bent = far.clip(-1, 1) if np.abs(far).max() < 50 else 0.5 * far**2 * np.sign(far)
    return 0.2 * far + 0.1 * bent + push, 10


def test_updates_of_a_destroyed_model_are_not_replayed(tmp_path: Path) -> None:
    """What honest clients sent from a model in ruins says nothing about this one: everybody is asked."""
    model = np.zeros(8, np.float32)
    history = record(tmp_path / "h", Answering(exploding), CLIENTS, 26, Everything(), model=model)
    assert np.abs(history.final_model()).max() > 1e4
    decided, fleet = plan(history, ILL, beta=0), Answering(exploding)
    steps = list(replay(decided, fleet))
    again = list(retrain(decided, Answering(exploding)))[-1].model
    assert np.linalg.norm(steps[-1].model - again) < 0.02 * np.linalg.norm(again)
    state = steps[-1].replay
    assert state.ignored >= 1
    assert [s.asked for s in steps if s.round == 21] == [decided.askable(21)]
    told = predicted_error(state, model, steps[-1].model, history.charter.layout)
    assert told.endswith(
        f"; in {state.ignored} rounds the history was of little use, so every client was asked"
    )
    assert state.error < np.linalg.norm(again)  # not that of the ruins


def test_where_nobody_answers_a_destroyed_model_is_not_replayed_either(tmp_path: Path) -> None:
    """The round is skipped, as in a retraining."""
    model = np.zeros(8, np.float32)
    history = record(tmp_path / "h", Answering(exploding), CLIENTS, 26, Everything(), model=model)

    def silent(model: np.ndarray, client: str, t: int, epochs: object) -> object:
        return None if t == 21 else exploding(model, client, t, epochs)

    steps = {s.round: s for s in replay(plan(history, ILL, beta=0), Answering(silent))}
    assert steps[21].asked
    assert steps[21].skipped == "no usable answer came"
    assert steps[21].model.tobytes() == steps[20].model.tobytes()
    assert np.linalg.norm(steps[25].model) < 10


def test_clients_take_turns(everything: Plan) -> None:
    steps = [s.asked for s in replay(everything, Answering(TASK.answer), every=1, asked=5, settle=0)]
    for one, other in pairwise(steps[1:]):
        assert not set(one) & set(other)
