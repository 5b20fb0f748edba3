"""The laws of a recovery method, run over every one of them."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from attack.tiny import SoftmaxFleet, predict
from fedcrab import ConfigError, Everything, Field, History, Layout, Plan, plan
from fedcrab.aggregate import krum, median, multi_krum, trimmed_mean
from fedcrab.attack import Attackers, boosted, label_flip
from fedcrab.recover import (
    CRAB_PRESETS,
    crab,
    federaser,
    fedrecover,
    finetune,
    replay,
    retrain,
    retrain_few,
    subtract_and_distil,
)
from fedcrab.seeds import rng_for
from recover.scenes import Answering, Quadratics, SoftmaxProbe, bits, record, scripted

METHODS: dict[str, Callable] = {
    "crab-paper": partial(crab, **CRAB_PRESETS["paper"]),
    "crab-hardened": partial(crab, **CRAB_PRESETS["hardened"]),
    "federaser": partial(federaser, epochs=3),
    "fedrecover": partial(fedrecover, warm_up=3, correct_every=3, tune=1),
    "replay": replay,
    "replay-trust": partial(replay, trust=True, every=2),
    "retrain": retrain,
    "retrain-few": partial(retrain_few, per_round=3),
    "finetune": partial(finetune, rounds=4),
    "subtract-and-distil": partial(subtract_and_distil, probe=SoftmaxProbe(), passes=3),
}


def all_but(*names: str) -> pytest.MarkDecorator:
    chosen = {name: method for name, method in METHODS.items() if name not in names}
    return pytest.mark.parametrize("method", chosen.values(), ids=chosen)


methods = all_but()
with_clients = all_but("subtract-and-distil")  # which asks nobody, and learns from the poisoned model
begins_clean = all_but("finetune", "subtract-and-distil")  # which go on from the poisoned model
CLIENTS, ILL = list("abcdef"), frozenset("be")
TASK = Quadratics(size=4, ill=ILL)


def trained(path: Path, share: float = 0.8) -> Plan:
    """Ten rounds of six clients, two of them ill; not everybody is always there."""
    fleet, model = Answering(TASK.answer), np.zeros(4, np.float32)
    history = record(path / "h", fleet, CLIENTS, 10, Everything(), model=model, share=share)
    return plan(history, ILL)


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return trained(tmp_path_factory.mktemp("trained"))


@methods
def test_the_same_clients_give_the_same_bits(method: Callable, decided: Plan) -> None:
    first, second = (list(method(decided, Answering(TASK.answer))) for _ in range(2))
    assert bits(first) == bits(second)
    assert [s.round for s in first] == sorted(s.round for s in first)
    assert all(s.model.dtype == np.float32 for s in first)


@methods
def test_nobody_malicious_is_asked_and_each_step_says_who_was(method: Callable, decided: Plan) -> None:
    fleet = Answering(TASK.answer)
    steps = list(method(decided, fleet))
    assert not ILL & {c for _, clients, _ in fleet.asked for c in clients}
    assert not ILL & {c for s in steps for c in s.clients}
    assert [(s.round, s.asked) for s in steps if s.asked] == [(t, clients) for t, clients, _ in fleet.asked]


@methods
def test_who_was_honest_first_is_not_asked_either(method: Callable, decided: Plan) -> None:
    fleet, late = Answering(TASK.answer), plan(decided.history, ILL, since={"b": 7, "e": 4})
    steps = list(method(late, fleet))
    assert not ILL & {c for _, clients, _ in fleet.asked for c in clients}
    assert all(not late.is_malicious(c, s.round) for s in steps for c in s.clients)


@methods
def test_the_history_stays_as_it_was(method: Callable, tmp_path: Path) -> None:
    found = trained(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    list(method(found, Answering(TASK.answer)))
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert History.verify(tmp_path / "h") == []


@methods
def test_it_can_be_stopped_and_asks_for_nothing_ahead(method: Callable, decided: Plan) -> None:
    fleet = Answering(TASK.answer)
    steps = method(decided, fleet)
    assert fleet.asked == []
    taken = [next(steps) for _ in range(2)]
    steps.close()
    assert len(fleet.asked) == sum(bool(s.asked) for s in taken)


@methods
def test_going_on_after_any_step_gives_the_same_bits(method: Callable, decided: Plan) -> None:
    whole = list(method(decided, Answering(TASK.answer)))
    for done in range(len(whole)):
        rest = list(method(decided, Answering(TASK.answer), after=whole[done]))
        assert bits(rest) == bits(whole[done + 1 :])


@with_clients
def test_the_model_moves_no_further_than_the_path(method: Callable, decided: Plan) -> None:
    steps = list(method(decided, Answering(TASK.answer)))
    for before, step in pairwise(steps):
        assert np.linalg.norm(step.model - before.model) <= step.path * (1 + 1e-5)


@with_clients
def test_another_rule_can_aggregate(method: Callable, decided: Plan) -> None:
    plain = list(method(decided, Answering(TASK.answer)))
    robust = list(method(decided, Answering(TASK.answer), aggregate=median()))
    assert [s.round for s in robust] == [s.round for s in plain]
    assert robust[-1].model.tolist() != plain[-1].model.tolist()


@with_clients
def test_a_rule_that_needs_more_than_there_are_is_refused_before_anybody_is_asked(
    method: Callable, decided: Plan
) -> None:
    fleet = Answering(TASK.answer)
    with pytest.raises(ConfigError, match=r"needs at least 7 answers, but round \d+ can have only [1-4], "):
        method(decided, fleet, aggregate=trimmed_mean(trim=3))
    assert fleet.asked == []


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> list[Plan]:
    """Trainings in which few or most take part."""
    return [trained(tmp_path_factory.mktemp("sparse"), share) for share in (0.4, 0.7, 1.0)]


@with_clients
def test_a_rule_is_refused_at_once_or_never(method: Callable, sparse: list[Plan]) -> None:
    """Whatever the rule and the participation: no client is asked in vain for a step that cannot be made."""
    rules = [*(trimmed_mean(trim=n) for n in (1, 2, 3)), krum(byzantine=1), multi_krum(byzantine=1, keep=2)]
    refused = 0
    for decided in sparse:
        for rule in rules:
            fleet = Answering(TASK.answer)
            try:
                steps = method(decided, fleet, aggregate=rule)
            except ConfigError:
                refused += 1
                assert fleet.asked == []
                continue
            assert all(np.isfinite(step.model).all() for step in steps)  # no refusal on the way
    assert 0 < refused < len(rules) * len(sparse)


@methods
def test_what_cannot_be_used_is_dropped_and_said(method: Callable, decided: Plan) -> None:
    def answer(model, client, t, epochs):
        update, examples = TASK.answer(model, client, t, epochs)
        if client == "a":
            return np.full(4, np.nan), examples
        if client == "c":
            return None
        return update, (0 if client == "d" else examples)

    steps = list(method(decided, Answering(answer)))
    for step in (s for s in steps if s.asked):
        reasons = {r.client: r.reason for r in step.dropped}
        assert set(reasons) == set(step.asked) - {"f"}
        assert "not finite" in reasons.get("a", "not finite")
        assert reasons.get("c", "did not answer") == "did not answer"
        assert set(step.clients) - set(step.estimated) <= {"f"}
        assert bool(step.skipped) == (not step.clients)
    assert np.isfinite(steps[-1].model).all()


@methods
def test_an_answer_that_was_not_asked_for_is_not_used(method: Callable, decided: Plan) -> None:
    class Eager(Answering):
        def train(self, model, clients, *, round, epochs=None):
            return super().train(model, [*clients, "b"], round=round, epochs=epochs)

    steps, plain = (list(method(decided, kind(TASK.answer))) for kind in (Eager, Answering))
    assert [s.model.tolist() for s in steps] == [s.model.tolist() for s in plain]
    assert all([r.client for r in s.dropped] == ["b"] for s in steps if s.asked)


@begins_clean
def test_where_nobody_can_be_used_the_model_stays(method: Callable, decided: Plan) -> None:
    steps = list(method(decided, Answering(lambda *_: None)))
    start = decided.history.initial_model()
    for step in steps:
        if not step.clients:
            assert step.skipped == "no usable answer came"
            np.testing.assert_array_equal(step.model, start)
        start = step.model


@begins_clean
def test_rounds_without_an_honest_client_are_skipped(method: Callable, tmp_path: Path) -> None:
    """Round 1 has the malicious client alone, round 2 nobody at all."""
    one, ill = {"a": ([1, 0], 1), "m": ([5, 5], 1)}, {"m": ([5, 5], 1)}
    history = scripted(tmp_path / "h", [one, ill, {}, one, one], Everything())
    fleet = Answering(lambda *_: ([0, 1], 1))
    steps = {s.round: s for s in method(plan(history, {"m"}, beta=0), fleet)}
    assert set(steps) == set(range(5))
    assert {t for t, _, _ in fleet.asked} <= {0, 3, 4}
    for t in (1, 2):
        assert steps[t].skipped == "the round has no honest client"
        assert (steps[t].clients, steps[t].path) == ((), 0)
        np.testing.assert_array_equal(steps[t].model, steps[t - 1].model)


@begins_clean
def test_buffers_are_never_calibrated(method: Callable, tmp_path: Path) -> None:
    """Statistics move by their weighted mean, counters by the rounded one; the trained part of the history is

    a hundred times what renewal gives, and the malicious client's buffers are absurd.
    """
    layout = Layout(
        (
            Field("mean", (2,), trained=False),
            Field("weight", (2,)),
            Field("count", (), trained=False, integer=True),
        )
    )
    honest = {"a": ([0.5, 0.25, 100, 0, 3], 1), "c": ([1.5, 0.25, 0, 100, 5], 1)}
    history = scripted(
        tmp_path / "h", [{**honest, "m": ([99, 99, -1, -1, 99], 2)}] * 8, Everything(), layout=layout
    )
    fresh = {"a": ([0.5, 0.25, 10, 1, 3], 1), "c": ([1.5, 0.25, 2, 10, 5], 1)}
    fleet = Answering(lambda model, client, t, epochs: fresh[client])
    for done, step in enumerate(method(plan(history, {"m"}, beta=0), fleet), start=1):
        assert step.model[[0, 1, 4]].tolist() == pytest.approx([1.0 * done, 0.25 * done, 4 * done])
        assert max(step.lengths) <= 100 * (1 + 1e-6)  # the buffers are no part of any length


@pytest.fixture(scope="module")
def task(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Plan, SoftmaxFleet, Callable[[np.ndarray], float]]:
    """Three Gaussian classes, eight clients, three of which mirror their labels and shout."""

    def examples(*address: str, count: int = 40) -> tuple[np.ndarray, np.ndarray]:
        rng = rng_for(1, *address)
        labels = rng.integers(0, 3, count)
        centres = rng_for(1, "centres").normal(size=(3, 1, 3, 3))
        return (centres[labels] + rng.normal(size=(count, 1, 3, 3))).astype(np.float32), labels

    fleet = SoftmaxFleet({c: examples("client", c) for c in "abcdefgh"}, 3, rate=0.3, epochs=3)
    ill = Attackers(frozenset("ceg"))
    attacked = boosted(label_flip(fleet, ill, classes=3), ill, factor=2.0)
    start = np.zeros(fleet.size, np.float32)
    place = tmp_path_factory.mktemp("task") / "h"
    history = record(place, attacked, list("abcdefgh"), 20, Everything(), model=start)
    images, labels = examples("test", count=600)
    return plan(history, ill.clients), fleet, lambda m: float((predict(m, images, 3) == labels).mean())


@with_clients
def test_it_is_better_than_the_poisoned_model(method: Callable, task: tuple) -> None:
    found, fleet, accuracy = task
    recovered, again = (list(m(found, fleet))[-1].model for m in (method, retrain))
    assert accuracy(recovered) > accuracy(found.history.final_model()) + 0.1
    assert accuracy(recovered) > accuracy(again) - 0.05
