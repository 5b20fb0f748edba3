"""Two trainings on the digits that keep every update: one with a backdoor, one without."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcrab.attack.trigger import Trigger, stamp
from fedcrab.audit import FlatModel, Inversion, invert
from fedcrab.experiment.config import load_config
from fedcrab.experiment.setup import Setup, open_for_training, prepare, run
from fedcrab.history import History

TRIGGER = Trigger(size=2)
SPREAD = "clients.partition={name='dirichlet', settings={concentration=0.5}}"


@dataclass(frozen=True)
class Training:
    setup: Setup
    history: History
    flat: FlatModel
    x: NDArray[np.float32]
    y: NDArray[np.int64]

    @property
    def bad(self) -> frozenset[str]:
        return self.setup.attackers.clients

    def inverted(self) -> Inversion:
        return invert(self.flat.at(self.history.final_model()), self.x, self.y, classes=10)


def trained(place: Path, *changes: str, clean: bool = False) -> Training:
    config = load_config(
        "digits", ["rounds=16", "attack.start=4", SPREAD, "history={name='everything'}", *changes]
    )
    setup = prepare(config.model_copy(update={"attack": None}) if clean else config, workers=0)
    with open_for_training(setup, place, resume=False) as history:
        for _ in run(setup, history):
            pass
    flat = FlatModel(setup.architecture.build(), setup.honest.layout)
    return Training(setup, History.open(place), flat, *setup.probe.examples)


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return trained(tmp_path_factory.mktemp("planted") / "h")


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return trained(tmp_path_factory.mktemp("clean") / "h", clean=True)


@pytest.fixture(scope="session")
def found(planted: Training) -> Inversion:
    return planted.inverted()


def stamped(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return stamp(x, TRIGGER)
