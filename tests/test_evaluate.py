"""The measures by hand, and on models that are known to be clean, poisoned or overfitted."""

import numpy as np
import pytest

from fedcrab import ConfigError, Updates
from fedcrab.attack import Trigger
from fedcrab.evaluate import accuracy, attack_success, fit_attack_model, membership
from fedcrab.recover.cost import MeteredFleet

X = np.zeros((4, 1, 8, 8), np.float32)
Y = np.array([0, 1, 2, 1])
MODEL = np.zeros(1, np.float32)


def always(label: int):
    return lambda _model, x: np.eye(3, dtype=np.float32)[np.full(len(x), label)]


def by_trigger(_model: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Class 0 where the corner is white, else class 1."""
    return np.eye(3, dtype=np.float32)[np.where(x[:, 0, -1, -1] == 1, 0, 1)]


def test_accuracy() -> None:
    assert accuracy(always(1), MODEL, X, Y) == 0.5
    with pytest.raises(ConfigError):
        accuracy(always(1), MODEL, X[:0], Y[:0])


def test_attack_success_with_and_without_the_target_class() -> None:
    poisoned = attack_success(by_trigger, MODEL, X, Y, target=0, trigger=Trigger(size=2))
    assert (poisoned.without_target, poisoned.with_target) == (1.0, 1.0)
    clean = attack_success(always(1), MODEL, X, Y, target=0)
    assert (clean.without_target, clean.with_target) == (0.0, 0.0)
    half = attack_success(lambda _m, x: np.eye(3)[Y[: len(x)]], MODEL, X, Y, target=0)
    assert (half.without_target, half.with_target) == (0.0, 0.25)
    assert (X == 0).all()
    with pytest.raises(ConfigError, match="target class"):
        attack_success(always(1), MODEL, X, np.zeros(4, np.int64), target=0)


def outputs(rng: np.random.Generator, count: int, sure: float) -> np.ndarray:
    scores = rng.normal(size=(count, 5))
    scores[np.arange(count), rng.integers(0, 5, count)] += sure
    scores = np.exp(scores)
    return (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)


def test_membership_is_told_from_a_model_that_is_surer_of_its_members() -> None:
    rng = np.random.default_rng(0)
    attack = fit_attack_model(outputs(rng, 500, 8), outputs(rng, 500, 1))
    members, others = outputs(rng, 300, 8), outputs(rng, 200, 1)
    told = membership(attack, lambda _m, x: x, MODEL, members, others)
    assert told.recall > 0.9
    assert told.balanced_accuracy > 0.9
    assert told.auc > 0.95
    untold = membership(attack, lambda _m, x: x, MODEL, outputs(rng, 500, 1), outputs(rng, 500, 1))
    assert untold.balanced_accuracy == pytest.approx(0.5, abs=0.06)
    assert untold.auc == pytest.approx(0.5, abs=0.06)
    with pytest.raises(ConfigError):
        membership(attack, lambda _m, x: x, MODEL, members[:0], others)
    with pytest.raises(ConfigError):
        fit_attack_model(members[:1], others)


class Silent:
    """Client b never answers."""

    def train(self, model, clients, *, round, epochs=None) -> Updates:
        return Updates.of({c: (np.zeros(1), 10) for c in clients if c != "b"})


def test_cost_is_metered_around_the_fleet() -> None:
    fleet = MeteredFleet(Silent(), epochs=5)
    assert fleet.train(MODEL, ["a", "b"], round=0).clients == ("a",)
    fleet.train(MODEL, ["a", "c"], round=1, epochs=2)
    assert fleet.cost.client_rounds == 4
    assert fleet.cost.sample_gradients == 10 * 5 + 20 * 2
    assert fleet.cost.calls == 2
    assert fleet.cost.seconds > 0
