"""Attacks on real, small images: the digits of scikit-learn, softmax regression."""

import numpy as np
import pytest

from attack.tiny import SoftmaxFleet, predict, run
from fedcrab.aggregate import fedavg
from fedcrab.attack import Attackers, Trigger, backdoor, dba, draw_attackers, label_flip, sign_flip, stamp

datasets = pytest.importorskip("sklearn.datasets")
CLIENTS = tuple(str(i) for i in range(8))
TRIGGER = Trigger(size=3, image=(1, 8, 8))


@pytest.fixture(scope="module")
def digits():
    images, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order] / 16).astype(np.float32), labels[order].astype(np.int64)


@pytest.fixture(scope="module")
def fleet(digits):
    images, labels = digits[0][:1200], digits[1][:1200]
    shards = {c: (images[i::8], labels[i::8]) for i, c in enumerate(CLIENTS)}
    return SoftmaxFleet(shards, classes=10, epochs=5)


@pytest.fixture(scope="module")
def measure(digits):
    images, labels = digits[0][1200:], digits[1][1200:]
    other = labels != 0

    def measured(model):
        accuracy = np.mean(predict(model, images, 10) == labels)
        success = np.mean(predict(model, stamp(images[other], TRIGGER), 10) == 0)
        return float(accuracy), float(success)

    return measured


def trained(fleet, inner):
    return run(fleet, inner.size, CLIENTS, 40, fedavg())


def test_without_an_attack_the_trigger_does_nothing(fleet, measure):
    accuracy, success = measure(trained(fleet, fleet))
    assert accuracy > 0.9
    assert success < 0.1


@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_the_backdoor_takes_and_the_model_stays_good(fleet, measure, fraction):
    evil = Attackers(draw_attackers(CLIENTS, fraction, 0))
    accuracy, success = measure(trained(backdoor(fleet, evil, trigger=TRIGGER), fleet))
    assert success > 0.8
    assert accuracy > 0.85


def test_one_boosted_attacker_that_starts_late_is_enough(fleet, measure):
    evil = Attackers(frozenset("3"), start=35)
    accuracy, success = measure(trained(backdoor(fleet, evil, trigger=TRIGGER, boost=6.0), fleet))
    assert success > 0.8
    assert accuracy > 0.7


def test_parts_make_a_whole_backdoor(fleet, measure):
    evil = Attackers(draw_attackers(CLIENTS, 0.5, 0))
    accuracy, success = measure(trained(dba(fleet, evil, parts=3, trigger=TRIGGER), fleet))
    assert success > 0.8
    assert accuracy > 0.85


@pytest.mark.parametrize("attack", [sign_flip, lambda f, a: label_flip(f, a, classes=10)])
def test_untargeted_attacks_harm(fleet, measure, attack):
    evil = Attackers(draw_attackers(CLIENTS, 0.5, 0))
    assert measure(trained(attack(fleet, evil), fleet))[0] < 0.8
