"""Check every name, setting and option of a suite before its first cell trains.

Partition, model, rule, attack and method are the real functions with the cell's own settings. They run with
as many labels as the data set has, on two small clients and a short history.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fedcrab.attack import Attackers
from fedcrab.errors import ConfigError
from fedcrab.experiment import names
from fedcrab.experiment.config import Config
from fedcrab.experiment.matrix import Cell, named_cell
from fedcrab.experiment.setup import aggregate_of, attacked, parts_of
from fedcrab.experiment.suite import POISONED, ResolvedMethod
from fedcrab.history import Everything, History
from fedcrab.rollback.decision import plan
from fedcrab.seeds import rng_for
from fedcrab.simulate import Architecture, Dataset, SimulatedFleet
from fedcrab.simulate.data import SIZES, Size
from fedcrab.types import Round, Updates

ROUNDS, NUMBERS = 4, 3  # of the short history


def rehearse(cells: Iterable[Cell]) -> None:
    """Raise ``ConfigError`` for the first cell that cannot be computed, with the reason."""
    seen = set[str]()
    with tempfile.TemporaryDirectory() as place:
        history = cache(partial(_history, Path(place)))
        for cell in cells:
            config = cell.config.model_copy(update={"seed": 0})
            with named_cell(cell.labels):
                if (key := config.to_json()) not in seen:
                    check_config(config)
                if (pair := f"{key} {cell.method}") not in seen:
                    _check_method(cell.method, config, history(config.clients.count))
            seen |= {key, pair}


def check_config(config: Config) -> None:
    """Raise ``ConfigError`` if a configuration has unknown names or impossible settings."""
    size = names.look_up("data set", config.data.name, SIZES)
    if config.data.probe >= size.examples:
        raise ConfigError(f"data.probe must be below {size.examples}, got {config.data.probe}")
    parts_of(config, np.arange(size.examples - config.data.probe, dtype=np.int64) % size.classes)
    rule = aggregate_of(config)
    if config.clients.share == 1 and not config.clients.drop_out:
        vectors = rng_for(0, "rehearsal").normal(size=(config.clients.count, NUMBERS)).astype(np.float32)
        rule(vectors, np.ones(config.clients.count))
    Architecture(config.model, size.shape, size.classes).build()
    _check_attack(config, size)


def _check_attack(config: Config, size: Size) -> None:
    """Try the attack on two clients that have one example of each class."""
    labels = np.tile(np.arange(size.classes), 2)
    images = np.zeros((len(labels), *size.shape), np.float32)
    dataset = Dataset(config.data.name, images, labels, images, labels, size.classes, size.shape)
    parts = tuple(np.array_split(np.arange(len(labels)), 2))
    fleet = SimulatedFleet(
        dataset, parts, Architecture("softmax", size.shape, size.classes), seed=0, workers=0
    )
    try:
        attacked(config, fleet, dataset, Attackers(frozenset({fleet.clients[0]})))
    finally:
        fleet.close()


def _history(place: Path, clients: int) -> History:
    """Return a short history with this many clients."""
    path, model = place / str(clients), np.zeros(NUMBERS, np.float32)
    ids = tuple(sorted(str(client) for client in range(clients)))
    with History.create(path, model, initial_loss=1.0, selection=Everything()) as history:
        for t in range(ROUNDS):
            vectors = rng_for(t, "rehearsal").normal(size=(clients, NUMBERS)).astype(np.float32)
            step = vectors.mean(axis=0)
            history.record(Round(t, model, Updates(ids, vectors, np.ones(clients)), step, 1.0 / (t + 1), 0.1))
            model = model + step
    return History.open(path)


def _check_method(method: ResolvedMethod, config: Config, history: History) -> None:
    """Plan and start the method, which checks its options before its first step."""
    if method.name == POISONED.name:
        return
    fraction = config.attack.fraction if config.attack else 0.0
    bad = [str(client) for client in range(round(fraction * config.clients.count))]
    decided = plan(history, bad, **_moved_into(dict(method.plan), config.rounds))
    options = {**dict(method.settings), "epochs": config.local.epochs}
    row = names.METHODS[method.name]
    given = {"probe": _UnusedFleet()} if row.needs_probe else {}
    row.function(decided, _UnusedFleet(), **options, **given)


def _moved_into(settings: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return the plan's settings for the short history; a valid ``since`` is moved into it."""
    since = settings.get("since")
    if isinstance(since, int) and ROUNDS <= since < rounds:
        return {**settings, "since": ROUNDS - 1}
    return settings


class _UnusedFleet:
    """A fleet and a probe set that are never used."""

    def train(self, *_: object, **__: object) -> Updates:
        """Raise: nothing is trained in a rehearsal."""
        raise NotImplementedError
