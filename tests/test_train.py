"""The federated loop: deterministic, resumable, deaf to what cannot be used."""

from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from fedcrab import ConfigError, Everything, Field, History, Layout, Selective, Updates
from fedcrab.aggregate import fedavg, median
from fedcrab.aggregate.mean import with_buffers
from fedcrab.history.ledger_state import untimed_head
from fedcrab.seeds import rng_for
from fedcrab.train import taking_part, train

CLIENTS = tuple(str(i) for i in range(9))


class Pulling:
    """Clients that pull the model towards points of their own; some send nonsense in some rounds."""

    def __init__(self, broken: frozenset[tuple[int, str]] = frozenset()) -> None:
        self.broken = broken

    def train(self, model, clients, *, round, epochs=None) -> Updates:
        answers = {}
        for c in clients:
            pull = (
                0.2 * (rng_for(1, c).normal(size=len(model)) - model) + 0.01 * rng_for(2, round, c).normal()
            )
            answers[c] = (np.full(len(model), np.nan) if (round, c) in self.broken else pull, 10 + int(c))
        return Updates.of(answers) if answers else Updates((), np.zeros((0, len(model))), np.zeros(0))


class Distance:
    def loss(self, model: np.ndarray) -> float:
        return float(np.linalg.norm(model - 1))

    def divergence(self, before: np.ndarray, after: np.ndarray) -> float:
        return float(np.linalg.norm(after - before))


def begin(path: Path, selection: object = None) -> History:
    model = np.zeros(6, np.float32)
    loss = Distance().loss(model)
    return History.create(path, model, initial_loss=loss, selection=selection or Selective(), seed=1)


SETTINGS = {
    "probe": Distance(),
    "aggregate": fedavg(),
    "rounds": 12,
    "seed": 3,
    "share": 0.6,
    "drop_out": 0.2,
}


def test_a_training_resumed_after_any_round_is_the_training_uninterrupted(tmp_path: Path) -> None:
    with begin(tmp_path / "straight") as straight:
        steps = list(train(Pulling(), CLIENTS, straight, **SETTINGS))
    assert [s.round for s in steps] == list(range(12))
    np.testing.assert_array_equal(steps[-1].model, straight.final_model())
    for stop in (0, 1, 5, 11):
        broken = begin(tmp_path / str(stop))
        for step in train(Pulling(), CLIENTS, broken, **SETTINGS):
            if step.round == stop:
                break
        broken.release()
        with History.resume(tmp_path / str(stop)) as resumed:
            assert len(list(train(Pulling(), CLIENTS, resumed, **SETTINGS))) == 11 - stop
        assert untimed_head(resumed.contents) == untimed_head(straight.contents)  # heads cover the times


def test_the_model_moves_by_the_aggregate_of_what_was_recorded(tmp_path: Path) -> None:
    with begin(tmp_path / "h", Everything()) as history:
        list(train(Pulling(), CLIENTS, history, **SETTINGS))
    for t in range(11):
        sent = history.updates(t)
        step = fedavg()(sent.vectors, sent.weights) if sent.clients else 0
        np.testing.assert_array_equal(history.model(t + 1), history.model(t) + step)


def test_nonsense_is_left_out_and_written_down(tmp_path: Path) -> None:
    broken = frozenset({(0, "3"), *((1, c) for c in CLIENTS)})
    with begin(tmp_path / "h") as history:
        steps = list(train(Pulling(broken), CLIENTS, history, **{**SETTINGS, "share": 1.0, "drop_out": 0.0}))
    assert [r.client for r in steps[0].rejected] == ["3"]
    assert "3" not in history.rounds[0].clients
    assert history.rounds[1].clients == ()
    assert history.rounds[1].start == history.rounds[1].after
    assert len(history.rounds[1].rejected) == 9


def test_who_takes_part_depends_on_the_round_alone() -> None:
    draws = [taking_part(CLIENTS, t, seed=1, share=0.5, drop_out=0.3) for t in range(200)]
    assert draws == [taking_part(CLIENTS[::-1], t, seed=1, share=0.5, drop_out=0.3) for t in range(200)]
    assert max(len(d) for d in draws) == 4
    assert np.mean([len(d) for d in draws]) == pytest.approx(4 * 0.7, abs=0.3)
    assert {c for d in draws for c in d} == set(CLIENTS)
    assert taking_part(CLIENTS, 0, seed=1, share=0.01, drop_out=0.0) != ()


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"share": 1.1}, {"drop_out": 1.0}, {"drop_out": -0.1}])
def test_settings_out_of_range(wrong: dict[str, float], tmp_path: Path) -> None:
    with begin(tmp_path / "h") as history, pytest.raises(ConfigError):
        next(train(Pulling(), CLIENTS, history, **{**SETTINGS, **wrong}))


def test_a_robust_rule_decides_over_what_is_trained_and_buffers_are_averaged() -> None:
    layout = Layout(
        (
            Field("mean", (1,), trained=False),
            Field("weight", (2,)),
            Field("steps", (), trained=False, integer=True),
        )
    )
    sent = np.array([[0, 1, 2, 5], [3, 1, 2, 7], [9, 50, 60, 6]], np.float32)
    result = with_buffers(median(), layout)(sent, np.array([1.0, 1, 2]))
    assert result.tolist() == [5.25, 1, 2, 6]
    plain = median()
    assert with_buffers(plain, Layout.flat(4)) is plain


def test_each_round_carries_when_it_was(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    with begin(tmp_path / "h") as history:
        list(train(Pulling(), CLIENTS, history, **SETTINGS))
    times = [t for entry in history.rounds for t in (entry.began, entry.ended)]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= datetime.now(UTC)


def test_a_clock_that_is_set_back_does_not_stop_the_training(tmp_path: Path) -> None:
    ticks = (datetime(2026, 5, 1, tzinfo=UTC) - timedelta(hours=n) for n in count())
    with begin(tmp_path / "h") as history:
        list(train(Pulling(), CLIENTS, history, **{**SETTINGS, "rounds": 2}, clock=lambda: next(ticks)))
    assert [(e.began.hour, e.ended.hour) for e in history.rounds] == [(0, 0), (22, 22)]


def test_asking_ahead_changes_no_number(tmp_path: Path) -> None:
    heads = []
    for name, ahead in (("one", False), ("two", True)):
        with begin(tmp_path / name, Everything()) as history:
            list(train(Pulling(frozenset({(2, "3")})), CLIENTS, history, **SETTINGS, ahead=ahead))
            heads.append(untimed_head(history.contents))
    assert heads[0] == heads[1]


def test_what_is_yielded_is_durable_and_the_next_round_is_under_way(tmp_path: Path) -> None:
    """Stopped anywhere, all that was yielded is there, and a resumed training is the uninterrupted one."""
    asked = []

    class Watched(Pulling):
        def train(self, model, clients, *, round, epochs=None):
            asked.append(round)
            return super().train(model, clients, round=round)

    history = begin(tmp_path / "h", Everything())
    for step in train(Watched(), CLIENTS, history, **SETTINGS, ahead=True):
        assert len(History.open(tmp_path / "h").rounds) == step.round + 1
        if step.round == 4:
            break
    history.release()
    with History.resume(tmp_path / "h") as resumed:
        list(train(Watched(), CLIENTS, resumed, **SETTINGS, ahead=True))
    with begin(tmp_path / "whole", Everything()) as whole:
        list(train(Pulling(), CLIENTS, whole, **SETTINGS))
    assert sorted(asked) == sorted([*range(12), 5])
    assert untimed_head(resumed.contents) == untimed_head(whole.contents)


def test_clients_that_fail_ahead_are_an_error_after_the_round_before(tmp_path: Path) -> None:
    class Failing(Pulling):
        def train(self, model, clients, *, round, epochs=None):
            if round == 2:
                raise ConfigError("no such luck")
            return super().train(model, clients, round=round)

    with begin(tmp_path / "h") as history, pytest.raises(ConfigError, match="no such luck"):
        list(train(Failing(), CLIENTS, history, **SETTINGS, ahead=True))
    assert len(history.rounds) == 2
