"""Predictions of flat models, loss and divergence."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.simulate.data import load_dataset
from fedcrab.simulate.models import ARCHITECTURES, Architecture, initial_model, read, tensors, write
from fedcrab.simulate.predict import Predictor, Probe, cross_entropy, kl_divergence

DIGITS = load_dataset("digits")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_equal_to_the_module_itself(name):
    architecture = Architecture(name, DIGITS.shape, 10)
    model = initial_model(architecture, seed=0)
    module = architecture.build().eval()
    write(list(tensors(module).values()), torch.tensor(model))
    with torch.no_grad():
        expected = torch.softmax(module(torch.tensor(DIGITS.train_x)), -1).numpy()
    got = Predictor(architecture).predict(model, DIGITS.train_x)
    assert np.abs(got - expected).max() < 1e-6
    assert np.abs(got.sum(1) - 1).max() < 1e-5


def test_loss_and_divergence_by_torch():
    log_p, log_q = (np.log(np.random.default_rng(i).dirichlet(np.ones(4), 9)).astype("f4") for i in (0, 1))
    y = np.arange(9) % 4
    assert cross_entropy(log_p, y) == pytest.approx(
        float(nn.functional.nll_loss(torch.tensor(log_p), torch.tensor(y))), rel=1e-6
    )
    expected = nn.functional.kl_div(
        torch.tensor(log_q), torch.tensor(log_p), reduction="batchmean", log_target=True
    )
    assert kl_divergence(log_p, log_q) == pytest.approx(float(expected), rel=1e-5)
    assert kl_divergence(log_p, log_p) == 0


def test_a_golden_divergence():
    """KL((1/2, 1/2) ‖ (1/4, 3/4)) = ln(2)/2 + ln(2/3)/2."""
    p, q = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    assert kl_divergence(p, q) == pytest.approx(np.log(4 / 3) / 2)


class Counting(Predictor):
    """Counts the models that it evaluates."""

    count = 0

    def log_probabilities(self, model, x):
        self.count += 1
        return super().log_probabilities(model, x)


def test_the_probe_evaluates_each_model_once():
    architecture = Architecture("mlp", DIGITS.shape, 10)
    predictor = Counting(architecture)
    probe = Probe(predictor, DIGITS.test_x, DIGITS.test_y)
    before, after = (initial_model(architecture, seed=s) for s in (0, 1))
    assert probe.loss(before) == pytest.approx(np.log(10), abs=0.3)
    assert probe.divergence(before, after) > 0
    assert probe.divergence(before, before) == 0
    assert probe.accuracy(after) < 0.3
    probe.loss(after)
    assert predictor.count == 2


@pytest.mark.parametrize("seen", [[0], [], [8, 9]], ids=["first", "resumed", "after other models"])
def test_a_round_takes_one_evaluation_wherever_training_starts(seen: list[int]):
    architecture = Architecture("mlp", DIGITS.shape, 10)
    predictor = Counting(architecture)
    probe = Probe(predictor, DIGITS.test_x, DIGITS.test_y)
    models = [initial_model(architecture, seed=s) for s in range(10)]
    for other in seen:
        probe.loss(models[other])
    for before, after in pairwise(range(6)):
        predictor.count = 0
        probe.loss(models[after])
        probe.divergence(models[before], models[after])
        assert predictor.count == (1 if before or seen == [0] else 2)


def test_a_model_changed_in_place_is_evaluated_anew():
    architecture = Architecture("mlp", DIGITS.shape, 10)
    probe = Probe(Predictor(architecture), DIGITS.test_x, DIGITS.test_y)
    model = initial_model(architecture, seed=0)
    before = probe.loss(model)
    model[:] = 0
    assert probe.loss(model) == pytest.approx(np.log(10))
    assert probe.loss(model) != before


def test_a_broken_model_has_no_finite_loss():
    architecture = Architecture("mlp", DIGITS.shape, 10)
    probe = Probe(Predictor(architecture), DIGITS.test_x, DIGITS.test_y)
    model = initial_model(architecture, seed=0)
    assert np.isnan(probe.loss(np.full_like(model, np.nan)))


def test_examples_of_another_shape_are_refused():
    architecture = Architecture("mlp", DIGITS.shape, 10)
    with pytest.raises(ConfigError, match=r"takes examples of shape \(1, 8, 8\)"):
        Predictor(architecture).predict(initial_model(architecture, seed=0), np.zeros((2, 1, 9, 9), "f4"))


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_distilling_is_plain_descent_on_the_divergence(name: str) -> None:
    """One epoch beside a loop by autograd, and several bring the outputs together."""
    rng = np.random.default_rng(0)
    architecture = Architecture(name, (1, 12, 12), 3)
    x, y = rng.normal(size=(40, 1, 12, 12)).astype(np.float32), rng.integers(0, 3, 40)
    probe = Probe(Predictor(architecture), x, y)
    student, teacher = (initial_model(architecture, seed=s) * np.float32(3) for s in (1, 2))
    told = {"temperature": 2.0, "rate": 0.1}
    found = probe.distil(student, teacher, epoch=5, **told)
    np.testing.assert_array_equal(found, probe.distil(student, teacher, epoch=5, **told))
    order, module = rng_for(5, "distil").permutation(40), architecture.build().eval()
    parts = list(tensors(module).values())
    write(parts, torch.tensor(teacher))
    goal = torch.softmax(module(torch.tensor(x)) / 2.0, -1).detach()
    write(parts, torch.tensor(student))
    for rows in (order[:32], order[32:]):
        log_q = torch.log_softmax(module(torch.tensor(x[rows])) / 2.0, -1)
        loss = 4.0 * (goal[rows] * (goal[rows].log() - log_q)).sum(1).mean()
        module.zero_grad()
        loss.backward()
        with torch.no_grad():
            for part in parts:
                part -= 0.1 * part.grad
    np.testing.assert_allclose(found, read(parts).numpy(), rtol=1e-4, atol=1e-6)
    before = probe.divergence(teacher, student)
    for epoch in range(20):
        student = probe.distil(student, teacher, epoch=epoch, **told)
    assert probe.divergence(teacher, student) < 0.3 * before
