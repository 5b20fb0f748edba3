"""Frozen parameters, as of LoRA and transfer learning: used everywhere, sent nowhere, never changed."""

import numpy as np
import pytest
import torch
from torch import nn

from fedcrab.audit.flat_model import FlatModel
from fedcrab.errors import ConfigError
from fedcrab.simulate import LocalTraining, Predictor, SimulatedFleet, iid, initial_model, load_dataset
from fedcrab.simulate.models import Architecture, frozen_hash

pytestmark = pytest.mark.usefixtures("forked_workers")

DIGITS = load_dataset("digits")
PARTS = iid(DIGITS.train_y, clients=4, seed=0)
OWN = """
import os
import torch
from torch import nn

def head(shape, classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 200).requires_grad_(False), nn.ReLU(), nn.Linear(200, classes)
    )

def of_this_process(shape, classes):
    module = head(shape, classes)
    module[1].bias.data.fill_(os.getpid())
    return module
"""


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    (tmp_path / "frozen_models.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def fleet_of(name, workers):
    local = LocalTraining(learning_rate=0.2, epochs=2, weight_decay=0.01, momentum=0.5)
    return SimulatedFleet(DIGITS, PARTS, f"frozen_models:{name}", seed=5, local=local, workers=workers)


def test_only_what_is_trained_travels_and_it_learns_the_same_in_every_process():
    models = []
    for workers in (0, 2):
        with fleet_of("head", workers) as fleet:
            assert fleet.layout.size == 200 * 10 + 10
            model = initial_model(fleet.architecture, seed=0)
            for index in range(6):
                updates = fleet.train(model, fleet.clients, round=index)
                model = model + updates.vectors.mean(0)
            models.append(model)
    assert np.array_equal(*models)
    assert Predictor(fleet.architecture).accuracy(models[0], DIGITS.test_x, DIGITS.test_y) > 0.75


def test_frozen_weights_are_the_same_in_every_module_that_is_made():
    architecture = Architecture("frozen_models:head", (1, 8, 8), 10)
    first = frozen_hash(architecture.build())
    torch.manual_seed(7)
    assert frozen_hash(architecture.build()) == first
    assert frozen_hash(nn.Linear(2, 2)) == frozen_hash(nn.Linear(3, 3))  # nothing is frozen


def test_frozen_weights_that_differ_between_processes_are_refused():
    with fleet_of("of_this_process", 2) as fleet:
        model = initial_model(fleet.architecture, seed=0)
        with pytest.raises(ConfigError, match="frozen parameters differ between processes; load them"):
            fleet.train(model, fleet.clients, round=0)


def test_an_audit_uses_the_frozen_weights_of_the_module():
    architecture = Architecture("frozen_models:head", (1, 8, 8), 10)
    fleet = fleet_of("head", 0)
    model = initial_model(architecture, seed=0)
    flat = FlatModel(architecture.build(), fleet.layout)
    expected = Predictor(architecture).log_probabilities(model, DIGITS.test_x).argmax(1)
    assert np.array_equal(flat.predict(model, DIGITS.test_x), expected)
    assert flat.gradient(model, DIGITS.test_x, DIGITS.test_y).shape == (fleet.layout.size,)
