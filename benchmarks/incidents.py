"""Trainings with a planted misbehaviour. The seed draws what is planted, where, by which clients and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack import Attackers, draw_attackers
from fedcrab.attack.backdoor import boosted
from fedcrab.attack.malicious_fleet import Examples, poison_examples
from fedcrab.experiment.config import load_config
from fedcrab.experiment.setup import Setup, open_for_training, prepare, run
from fedcrab.history import History
from fedcrab.seeds import rng_for
from fedcrab.simulate import SimulatedFleet
from fedcrab.types import ClientId, Fleet

SPREADS = ("iid", "dirichlet-0.5", "dirichlet-0.1")
FRACTIONS = (0.1, 0.25, 0.4)
CLIENTS, ROUNDS, EXAMPLES = 20, 20, 200
POISONED = 0.6  # of the examples of an attacker that plants a trigger
LEAST = 5  # examples that an attacker must be able to mislabel
BOOST = {0.1: 10.0, 0.25: 3.0, 0.4: 2.0}  # few attackers need a larger boost to have an effect
BOOSTED = ("boosted", "dba")  # each attacker of a DBA has only a part of the trigger
STARTS = (0, 0, 2, 3)  # the first poisoned round, drawn
LEARNING = {  # rate and epochs that train each model within these few rounds
    "mlp": (0.05, 3),
    "cnn": (0.05, 3),
    "resnet": (0.1, 2),
}
SMALLER = {
    "cnn": (10, 12, 200),
    "resnet": (10, 8, 150),
}  # clients, rounds and examples of trainings that would otherwise take minutes


@dataclass(frozen=True, slots=True)
class Patch:
    """A square of one colour anywhere in an image."""

    row: int
    column: int
    size: int
    value: tuple[float, ...]  # of each channel
    target: int

    def mask(self, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        covered = np.zeros(shape[1:], bool)
        covered[self.row : self.row + self.size, self.column : self.column + self.size] = True
        return covered

    def stamp(self, x: NDArray[np.float32], part: int = 0, parts: int = 1) -> NDArray[np.float32]:
        """Return copies with the patch, or with one of its parts: its pixels, row by row."""
        rows, columns = np.nonzero(self.mask(x.shape[1:]))
        some = np.array_split(np.arange(len(rows)), parts)[part]
        stamped = np.array(x, np.float32)
        stamped[:, :, rows[some], columns[some]] = np.array(self.value, np.float32)[None, :, None]
        return stamped


@dataclass(frozen=True)
class Incident:
    """A training to run: its clients, its attackers, and what they teach."""

    setup: Setup
    kind: str
    patch: Patch | None  # of a backdoor
    source: int  # of mislabelled examples
    target: int
    subgroup: Callable[[Examples], NDArray[np.bool_]]  # which examples are mislabelled
    attack: Callable[[SimulatedFleet], Fleet]  # the attack around any fleet of the same clients

    @property
    def start(self) -> int:
        return self.setup.attackers.start

    def success(self, model: NDArray[np.float32]) -> float:
        """How often the attack works on test examples."""
        x, y = self.misbehaviour()
        if not len(x):
            return 0.0
        return float(np.mean(self.setup.predictor.log_probabilities(model, x).argmax(1) == y))

    def misbehaviour(self) -> Examples:
        """Test examples with the label that the attack wants for them."""
        data = self.setup.dataset
        if self.patch is not None:
            others = data.test_y != self.target
            x = self.patch.stamp(data.test_x[others][:1000])
        else:
            x = data.test_x[self.subgroup((data.test_x, data.test_y))][:1000]
        return x, np.full(len(x), self.target)

    def fleet_again(self) -> Fleet:
        """The same clients and attackers at another time: they draw other batches."""
        return self.attack(self.setup.honest.training_again())

    def record(self, path: Path) -> History:
        with open_for_training(self.setup, path, resume=False) as history:
            for _ in run(self.setup, history):
                pass
        return History.open(path)


def incident(
    data: str, model: str, spread: str, fraction: float, kind: str, seed: int, kept: str = "everything"
) -> Incident:
    """A training. ``kind``: clean, patch, boosted, dba, class-flip, subgroup."""
    rate, epochs = LEARNING[model]
    clients, rounds, examples = SMALLER.get(model, (CLIENTS, ROUNDS, EXAMPLES))
    changes = [f"seed={seed}", f"model={model}", f"rounds={rounds}", f"data.name={data}", "data.probe=1000"]
    changes += [f"clients.count={clients}"]
    if data == "digits":
        changes += ["data.probe=137", "local.batch=16", "local.learning_rate=0.1", "local.epochs=2"]
    else:
        changes += [f"data.examples_per_client={examples}", "local.batch=32"]
        changes += [f"local.learning_rate={rate}", f"local.epochs={epochs}"]
    changes += [f"history={{name='{kept}'}}"]
    if spread != "iid":
        amount = spread.removeprefix("dirichlet-")
        changes += [f"clients.partition={{name='dirichlet', settings={{concentration={amount}}}}}"]
    config = load_config("digits", changes).model_copy(update={"attack": None})
    setup, rng = prepare(config, workers=0), rng_for(seed, "incident")
    source, target = (int(c) for c in rng.permutation(setup.dataset.classes)[:2])
    patch = _patch(rng, setup.dataset.shape, target)
    chosen = _subgroup(setup, source, kind)
    if kind == "clean":
        return Incident(setup, kind, None, source, target, chosen, lambda fleet: fleet)
    planted = kind in ("patch", "boosted", "dba")
    pool = setup.honest.clients if planted else _able(setup, chosen)
    count = round(fraction * len(setup.honest.clients))
    drawn = draw_attackers(pool, min(count / len(pool), 1.0), seed)
    attackers = Attackers(drawn, start=int(rng.choice(STARTS)), seed=seed)
    ordered, parts = sorted(drawn), 4 if kind == "dba" else 1

    def poison(client: ClientId, examples: Examples) -> Examples:
        x, y = examples[0].copy(), examples[1].copy()
        if planted:
            draw = rng_for(seed, "poisoned", client).random(len(y)) < POISONED
            rows = np.flatnonzero(draw)
            x[rows] = patch.stamp(x[rows], ordered.index(client) % parts, parts)
        else:
            rows = np.flatnonzero(chosen(examples))
        y[rows] = target
        return x, y

    def attack(fleet: SimulatedFleet) -> Fleet:
        poisoned = poison_examples(fleet, attackers, poison)
        return boosted(poisoned, attackers, factor=BOOST[fraction]) if kind in BOOSTED else poisoned

    attacked = replace(setup, fleet=attack(setup.honest), attackers=attackers)
    return Incident(attacked, kind, patch if planted else None, source, target, chosen, attack)


def _able(setup: Setup, chosen: Callable[[Examples], NDArray[np.bool_]]) -> list[ClientId]:
    """Return the clients that have enough examples to mislabel; the others could teach nothing."""
    return [c for c in setup.honest.clients if chosen(setup.honest.examples(c)).sum() >= LEAST]


def _patch(rng: np.random.Generator, shape: tuple[int, ...], target: int) -> Patch:
    """Return a patch of 2 to 6 pixels per side (2 or 3 on 8×8 images), anywhere, of one visible colour."""
    channels, height, width = shape
    size = int(rng.integers(2, 4 if min(height, width) < 16 else 7))
    row, column = (int(rng.integers(0, side - size + 1)) for side in (height, width))
    value = (1.0,) if channels == 1 and rng.random() < 0.5 else tuple(rng.uniform(0.5, 1.0, channels))
    if channels == 3:
        value = tuple(float(v) for v in rng.integers(0, 2, 3))
    return Patch(row, column, size, tuple(float(v) for v in value), target)


def _subgroup(setup: Setup, source: int, kind: str) -> Callable[[Examples], NDArray[np.bool_]]:
    """All of the source class, or for `subgroup` those on one side of its first principal component."""
    if kind != "subgroup":
        return lambda examples: np.asarray(examples[1] == source)
    own = setup.dataset.train_x[setup.dataset.train_y == source].reshape(
        -1, int(np.prod(setup.dataset.shape))
    )
    mean = own.mean(axis=0)
    axis = np.linalg.svd(own[:1000] - mean, full_matrices=False)[2][0]
    cut = np.quantile((own - mean) @ axis, 0.6)

    def chosen(examples: Examples) -> NDArray[np.bool_]:
        x, y = examples
        along = (x.reshape(len(x), -1) - mean) @ axis
        return np.asarray((y == source) & (along > cut))

    return chosen
