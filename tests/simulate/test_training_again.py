"""Clients who train again draw other batches than the history's, and the same ones each time."""

import numpy as np

from fedcrab.attack import Attackers, label_flip
from fedcrab.simulate import SimulatedFleet, iid, initial_model, load_dataset


def test_training_again_draws_other_batches_and_always_the_same() -> None:
    dataset = load_dataset("digits")
    parts = iid(dataset.train_y, clients=4, seed=0)
    fleet = SimulatedFleet(dataset, parts, "softmax", seed=0, workers=0)
    model, again = initial_model(fleet.architecture, seed=0), fleet.training_again()
    first, other, repeated = (f.train(model, ["0", "1"], round=3).vectors for f in (fleet, again, again))
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(other, repeated)
    assert np.linalg.norm(first - other) < 0.5 * np.linalg.norm(first)
    rounds = [again.train(model, ["0"], round=t).vectors for t in range(4)]
    past = [fleet.train(model, ["0"], round=t).vectors for t in range(4)]
    drawn = {v.tobytes() for v in (*rounds, *past)}
    later = [fleet.training_again(2).train(model, ["0"], round=t).vectors for t in range(4)]
    assert len(drawn | {v.tobytes() for v in later}) == 12  # no round of the one is a round of another


def test_examples_that_are_exchanged_are_trained_on_again_too() -> None:
    dataset = load_dataset("digits")
    fleet = SimulatedFleet(dataset, iid(dataset.train_y, clients=4, seed=0), "softmax", seed=0, workers=0)
    model, bad = initial_model(fleet.architecture, seed=0), Attackers(frozenset({"1"}))
    once, again = (label_flip(f, bad, classes=10) for f in (fleet, fleet.training_again()))
    answers = [f.train(model, ["1"], round=0).vectors for f in (once, again, fleet.training_again())]
    assert len({a.tobytes() for a in answers}) == 3
