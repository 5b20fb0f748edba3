"""The fleet: the same bits for any number of workers, other examples for some clients, and no leaks."""

import numpy as np
import pytest

from fedcrab.errors import ConfigError, FedcrabError
from fedcrab.simulate import LocalTraining, Predictor, SimulatedFleet, dirichlet, initial_model, load_dataset

pytestmark = pytest.mark.usefixtures("forked_workers")

DIGITS = load_dataset("digits")
PARTS = dirichlet(DIGITS.train_y, clients=12, concentration=0.5, seed=0)
OWN = """
import torch
from torch import nn

def with_dropout(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(), nn.Linear(32, classes))

class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        raise RuntimeError("no such luck")

def that_fails(shape, classes):
    return Fails()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def fleet_of(name="mlp", workers=0, **settings):
    local = LocalTraining(epochs=1, **settings)
    return SimulatedFleet(DIGITS, PARTS, name, seed=5, local=local, workers=workers)


def five_rounds(fleet, rounds=5):
    """Plain averaging, a third of the clients a round."""
    model = initial_model(fleet.architecture, seed=0)
    for index in range(rounds):
        updates = fleet.train(model, fleet.clients[index % 3 :: 3], round=index)
        model = model + np.average(updates.vectors, axis=0, weights=updates.weights).astype("f4")
    return model


@pytest.mark.parametrize("name", ["mlp", "cnn", "own_models:with_dropout"])
def test_five_rounds_have_the_same_bits_with_any_number_of_workers(own, name):
    here = five_rounds(fleet_of(name))
    for workers in (1, 3) if name == "mlp" else (2,):
        with fleet_of(name, workers) as fleet:
            assert np.array_equal(five_rounds(fleet), here)


def test_updates_do_not_depend_on_who_else_is_asked():
    fleet = fleet_of()
    model = initial_model(fleet.architecture, seed=0)
    everyone = fleet.train(model, fleet.clients, round=3)
    few = fleet.train(model, ["7", "11", "2"], round=3)
    assert few.clients == ("11", "2", "7")
    assert np.array_equal(few.vectors, everyone.only(few.clients).vectors)
    assert np.array_equal(few.weights, [len(PARTS[11]), len(PARTS[2]), len(PARTS[7])])


def test_rounds_draw_other_batches_and_epochs_can_be_given():
    fleet = fleet_of()
    model = initial_model(fleet.architecture, seed=0)
    first = fleet.train(model, ["0"], round=0).vectors
    assert not np.array_equal(first, fleet.train(model, ["0"], round=1).vectors)
    assert np.array_equal(first, fleet.train(model, ["0"], round=0, epochs=1).vectors)
    assert np.abs(fleet.train(model, ["0"], round=0, epochs=4).vectors).max() > np.abs(first).max()
    assert not fleet.train(model, ["0"], round=0, epochs=0).vectors.any()


def test_it_learns():
    model = five_rounds(fleet_of(learning_rate=0.5), rounds=40)

    accuracy = Predictor(fleet_of().architecture).accuracy(model, DIGITS.test_x, DIGITS.test_y)
    assert accuracy > 0.8


def test_earlier_updates_are_not_overwritten():
    fleet = fleet_of()
    model = initial_model(fleet.architecture, seed=0)
    first = fleet.train(model, ["0"], round=0)
    copy = first.vectors.copy()
    fleet.train(model, ["0"], round=1)
    assert np.array_equal(first.vectors, copy)
    assert np.array_equal(model, initial_model(fleet.architecture, seed=0))


def test_buffers_of_an_update_are_local_minus_start():
    fleet = fleet_of("resnet")
    model = initial_model(fleet.architecture, seed=0)
    updates = fleet.train(model, ["0"], round=0)
    counters = [fleet.layout.slices()[f.name] for f in fleet.layout.fields if f.integer]
    batches = -(-len(PARTS[0]) // 64)
    assert counters
    assert all((updates.vectors[0, place] == batches).all() for place in counters)


@pytest.mark.parametrize("workers", [0, 2])
def test_other_examples_for_some_clients(workers):
    with fleet_of(workers=workers) as fleet:
        model = initial_model(fleet.architecture, seed=0)
        before = fleet.train(model, fleet.clients, round=0)
        x, y = fleet.examples("3")
        flipped = fleet.with_examples({"3": (x, 9 - y), "5": fleet.examples("6")})
        after = flipped.train(model, fleet.clients, round=0)
        same = [c for c in fleet.clients if c not in ("3", "5")]
        assert np.array_equal(after.only(same).vectors, before.only(same).vectors)
        assert not np.array_equal(after.only(["3"]).vectors, before.only(["3"]).vectors)
        assert after.only(["5"]).weights[0] == len(PARTS[6])
        assert np.array_equal(flipped.examples("3")[1], 9 - y)
        again = flipped.with_examples({"3": (x, y), "5": fleet.examples("5")})
        assert np.array_equal(again.train(model, fleet.clients, round=0).vectors, before.vectors)
        assert np.array_equal(fleet.train(model, fleet.clients, round=0).vectors, before.vectors)


def test_examples_are_those_of_the_partition_and_cannot_be_changed():
    fleet = fleet_of()
    x, y = fleet.examples("4")
    assert np.array_equal(x, DIGITS.train_x[PARTS[4]])
    assert np.array_equal(y, DIGITS.train_y[PARTS[4]])
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_module_that_fails_is_one_sentence(own, workers):
    with fleet_of("own_models:that_fails", workers) as fleet:
        model = initial_model(fleet.architecture, seed=0)
        with pytest.raises(ConfigError, match=r"round 4, training of 1 failed: RuntimeError: no such luck"):
            fleet.train(model, ["1"], round=4)


def test_nobody_asked_is_an_empty_answer():
    for workers in (0, 2):
        fleet = fleet_of(workers=workers)
        updates = fleet.train(initial_model(fleet.architecture, seed=0), [], round=0)
        assert updates.vectors.shape == (0, fleet.layout.size)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda f, m: f.train(m, ["12"], round=0), "no client '12'; this fleet has '0' to '11'"),
        (lambda f, m: f.train(m, ["1", "1"], round=0), "asked twice"),
        (lambda f, m: f.train(m[1:], ["1"], round=0), "numbers, got an array of shape"),
        (lambda f, m: f.train(m, ["1"], round=0, epochs=-1), "epochs"),
        (lambda f, m: f.examples("x"), "no client 'x'"),
        (lambda f, m: f.with_examples({"1": (np.zeros((2, 1, 8, 8), "f4"), np.array([1]))}), "client '1'"),
        (lambda f, m: f.with_examples({"1": (np.zeros((1, 1, 8, 8), "f4"), np.array([10]))}), "0 to 9"),
        (lambda f, m: fleet_of(workers=-1), "workers must be 0 or more"),
        (lambda f, m: fleet_of("__main__:mine", workers=2), "module of its own"),
        (lambda f, m: SimulatedFleet(DIGITS, (), seed=0), "at least one client"),
        (lambda f, m: SimulatedFleet(DIGITS, (np.array([1437]),), seed=0), "0 to 1436, got 1437"),
    ],
)
def test_what_cannot_be_is_refused(ask, says):
    fleet = fleet_of()
    with pytest.raises(FedcrabError, match=says):
        ask(fleet, initial_model(fleet.architecture, seed=0))
