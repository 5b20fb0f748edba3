"""From a configuration to the things it names: data, clients, attackers, model, probe, history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.rule import Aggregate
from fedcrab.attack import Attackers, Trigger, draw_attackers
from fedcrab.errors import ConfigError
from fedcrab.experiment import names
from fedcrab.experiment.config import Config
from fedcrab.history import History
from fedcrab.simulate import (
    Architecture,
    Dataset,
    LocalTraining,
    Predictor,
    Probe,
    SimulatedFleet,
    counts,
    hold_out,
    initial_model,
    limited,
    load,
)
from fedcrab.simulate.partition import Parts
from fedcrab.train import Step, train
from fedcrab.types import Fleet


@dataclass(frozen=True)
class Setup:
    """Everything that a training needs, made once."""

    config: Config
    dataset: Dataset  # without the probe examples
    honest: SimulatedFleet
    fleet: Fleet  # the honest fleet with the attack around it
    attackers: Attackers
    predictor: Predictor
    probe: Probe
    parts: Parts  # which training examples each client has

    @property
    def examples(self) -> NDArray[np.int64]:
        """How many examples of each class each client has."""
        return counts(self.dataset.train_y, self.parts, classes=self.dataset.classes)

    @property
    def architecture(self) -> Architecture:
        """The model that is trained."""
        return self.honest.architecture

    def accuracy(self, model: NDArray[np.float32]) -> float:
        """TA: accuracy on the test part."""
        return self.predictor.accuracy(model, self.dataset.test_x, self.dataset.test_y)

    def close(self) -> None:
        """End the worker processes."""
        self.honest.close()


def prepare(config: Config, *, workers: int | None = None) -> Setup:
    """Make what a configuration names."""
    dataset, probe_x, probe_y = hold_out(load(config.data.name), probe=config.data.probe, seed=config.seed)
    parts = _parts(config, dataset)
    architecture = Architecture(config.model, dataset.shape, dataset.classes)
    local = LocalTraining(**config.local.model_dump())
    honest = SimulatedFleet(dataset, parts, architecture, seed=config.seed, local=local, workers=workers)
    predictor = Predictor(architecture)
    return Setup(
        config=config,
        dataset=dataset,
        honest=honest,
        fleet=_attacked(config, honest, dataset),
        attackers=attackers_of(config, honest),
        predictor=predictor,
        probe=Probe(predictor, probe_x, probe_y),
        parts=parts,
    )


def _parts(config: Config, dataset: Dataset) -> Parts:
    spread = config.clients.partition
    function = names.look_up("partition", spread.name, names.PARTITIONS)
    fixed = {"clients": config.clients.count, "seed": config.seed}
    what = f"partition {spread.name!r}"
    parts: Parts = names.call(what, function, dataset.train_y, settings=spread.settings, **fixed)
    most = config.data.examples_per_client
    return parts if most is None else limited(parts, most=most, seed=config.seed)


def attackers_of(config: Config, fleet: SimulatedFleet) -> Attackers:
    """Who attacks: drawn from all clients by the seed; nobody where there is no attack."""
    plan = config.attack
    if plan is None:
        return Attackers(frozenset())
    drawn = draw_attackers(fleet.clients, plan.fraction, config.seed)
    return Attackers(drawn, start=plan.start, share=plan.share, seed=config.seed)


def _attacked(config: Config, fleet: SimulatedFleet, dataset: Dataset) -> Fleet:
    plan = config.attack
    if plan is None:
        return fleet
    function = names.look_up("attack", plan.name, names.ATTACKS)
    settings = dict(plan.settings)
    if isinstance(settings.get("trigger"), dict):
        settings["trigger"] = names.call("a trigger", Trigger, settings=settings["trigger"])
    if "classes" in names.settable(function):
        settings.setdefault("classes", dataset.classes)
    attackers = attackers_of(config, fleet)
    attacked: Fleet = names.call(f"attack {plan.name!r}", function, fleet, attackers, settings=settings)
    return attacked


def open_history(setup: Setup, path: Path, *, resume: bool) -> History:
    """A new history for this training, or the one that it left when it was interrupted."""
    if resume:
        return _resumed(setup.config, path)
    kept = setup.config.history
    selection = names.call(
        f"history {kept.name!r}",
        names.look_up("history", kept.name, names.SELECTIONS),
        settings=kept.settings,
    )
    model = initial_model(setup.architecture, seed=setup.config.seed)
    return History.create(
        path,
        model,
        initial_loss=setup.probe.loss(model),
        selection=selection,
        layout=setup.honest.layout,
        aggregation=setup.config.aggregation.name,
        seed=setup.config.seed,
        notes=setup.config.to_json(),
    )


def _resumed(config: Config, path: Path) -> History:
    history = History.resume(path)
    if history.charter.notes != config.to_json():
        history.release()
        raise ConfigError(f"{path}: begun with another configuration; resume it with the same one")
    return history


def aggregate_of(config: Config) -> Aggregate:
    """The rule of a configuration."""
    rule = config.aggregation
    function = names.look_up("rule", rule.name, names.RULES)
    aggregate: Aggregate = names.call(f"rule {rule.name!r}", function, settings=rule.settings)
    return aggregate


def run(setup: Setup, history: History) -> Iterator[Step]:
    """Train as configured, recording into the history."""
    config = setup.config
    return train(
        setup.fleet,
        setup.honest.clients,
        history,
        probe=setup.probe,
        aggregate=aggregate_of(config),
        rounds=config.rounds,
        seed=config.seed,
        share=config.clients.share,
        drop_out=config.clients.drop_out,
    )
