"""Build a training from a configuration: data, clients, attackers, model, probe and history.

:func:`rerecord` records a history of everything again with another selection, without training again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.mean import Aggregate
from fedcrab.attack import Attackers, Trigger, draw_attackers
from fedcrab.attack.malicious_fleet import parse_rounds
from fedcrab.errors import ConfigError, HistoryError
from fedcrab.experiment import names
from fedcrab.experiment.config import Config
from fedcrab.history import Everything, History
from fedcrab.history.selection import Selection
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
    load_dataset,
)
from fedcrab.simulate.partition import Parts
from fedcrab.train import TrainedRound, train
from fedcrab.types import Fleet, Round

AHEAD = 1 << 28  # bytes of a round's updates; below this, two rounds may be in memory at a time


def rerecord(history: History, path: Path, selection: Selection) -> History:
    """Record a history that keeps everything again, with another selection; return the new history."""
    charter = history.charter
    if not isinstance(charter.selection, Everything):
        raise HistoryError(f"{history.path}: only a history recorded with Everything() can be recorded again")
    _check_unbroken(history)
    with History.create(
        path,
        history.initial_model(),
        initial_loss=charter.initial_loss,
        selection=selection,
        layout=charter.layout,
        aggregation=charter.aggregation,
        seed=charter.seed,
        gram_limit=charter.gram_limit,
        sketch_size=charter.sketch_size,
        notes=charter.notes,
        clock=None,  # rounds keep the times of the first recording, if it has any
    ) as other:
        for entry in history.rounds:
            other.record(_round(history, entry.index))
    return History.open(path)


def _check_unbroken(history: History) -> None:
    """Check that every round starts from the model of the one before; otherwise its step is unknown."""
    for before, after in pairwise(history.rounds):
        if after.start != before.after:
            raise HistoryError(
                f"{history.path}: round {after.index} does not start from the model that round "
                f"{before.index} ended with; only an unbroken history can be recorded again"
            )


def _round(history: History, index: int) -> Round:
    """Return a round as it was recorded. Its step is the model after it minus the model before it."""
    entry, start = history.rounds[index], history.model(index)
    last = index == len(history.rounds) - 1
    after = history.final_model() if last else history.model(index + 1)
    step = np.asarray(after - start, np.float32)
    measured = entry.loss, entry.divergence, entry.rejected, entry.began, entry.ended
    return Round(index, start, history.updates(index), step, *measured)


@dataclass(frozen=True)
class Setup:
    """Everything that a training needs."""

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
        """TA, the accuracy on the test set."""
        return self.predictor.accuracy(model, self.dataset.test_x, self.dataset.test_y)

    def fleet_again(self, time: int = 1) -> Fleet:
        """Return the same clients and attackers with other batches than in the history."""
        return attacked(self.config, self.honest.training_again(time), self.dataset, self.attackers)

    def close(self) -> None:
        """End the worker processes."""
        self.honest.close()


def prepare(config: Config, *, workers: int | None = None) -> Setup:
    """Create everything that a configuration names."""
    dataset, probe_x, probe_y = hold_out(
        load_dataset(config.data.name), probe=config.data.probe, seed=config.seed
    )
    parts = parts_of(config, dataset.train_y)
    architecture = Architecture(config.model, dataset.shape, dataset.classes)
    local = LocalTraining(**config.local.model_dump())
    honest = SimulatedFleet(
        dataset, parts, architecture, seed=config.seed, local=local, workers=workers, device=config.device
    )
    predictor = Predictor(architecture, device=config.device)
    attackers = attackers_of(config, honest)
    return Setup(
        config=config,
        dataset=dataset,
        honest=honest,
        fleet=attacked(config, honest, dataset, attackers),
        attackers=attackers,
        predictor=predictor,
        probe=Probe(predictor, probe_x, probe_y),
        parts=parts,
    )


def parts_of(config: Config, labels: NDArray[np.int64]) -> Parts:
    """Partition examples with these labels over the clients."""
    spread = config.clients.partition
    function = names.look_up("partition", spread.name, names.PARTITIONS)
    fixed = {"clients": config.clients.count, "seed": config.seed}
    what = f"partition {spread.name!r}"
    parts: Parts = names.call(what, function, labels, settings=spread.settings, **fixed)
    most = config.data.examples_per_client
    return parts if most is None else limited(parts, most=most, seed=config.seed)


def attackers_of(config: Config, fleet: SimulatedFleet) -> Attackers:
    """Return the attackers, drawn from all clients by the seed; none if there is no attack."""
    plan = config.attack
    if plan is None:
        return Attackers(frozenset())
    drawn = draw_attackers(fleet.clients, plan.fraction, config.seed)
    rounds = None if plan.rounds is None else parse_rounds(plan.rounds)
    return Attackers(drawn, start=plan.start, share=plan.share, seed=config.seed, rounds=rounds)


def attacked(config: Config, fleet: SimulatedFleet, dataset: Dataset, attackers: Attackers) -> Fleet:
    """Return the fleet wrapped in the configured attack."""
    plan = config.attack
    if plan is None:
        return fleet
    function = names.look_up("attack", plan.name, names.ATTACKS)
    settings = dict(plan.settings)
    if isinstance(settings.get("trigger"), dict):
        settings["trigger"] = names.call("a trigger", Trigger, settings=settings["trigger"])
    if "classes" in names.setting_names(function):
        settings.setdefault("classes", dataset.classes)
    poisoned: Fleet = names.call(f"attack {plan.name!r}", function, fleet, attackers, settings=settings)
    return poisoned


def open_for_training(setup: Setup, path: Path, *, resume: bool) -> History:
    """Return a new history for this training, or with ``resume`` that of an interrupted one."""
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
    notes = history.charter.notes  # an older version may have written them, without newer settings
    if notes != config.to_json() and not (notes.startswith("{") and Config.from_json(notes) == config):
        history.release()
        raise ConfigError(f"{path}: started with a different configuration; resume it with the same one")
    return history


def aggregate_of(config: Config) -> Aggregate:
    """Return the aggregation rule of a configuration."""
    rule = config.aggregation
    function = names.look_up("rule", rule.name, names.RULES)
    aggregate: Aggregate = names.call(f"rule {rule.name!r}", function, settings=rule.settings)
    return aggregate


def run(setup: Setup, history: History) -> Iterator[TrainedRound]:
    """Train as configured and record into the history; yields each round."""
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
        ahead=setup.honest.workers > 0 and _bytes_of_a_round(setup) < AHEAD,
    )


def _bytes_of_a_round(setup: Setup) -> int:
    """Return how many bytes the updates of all clients need."""
    return len(setup.honest.clients) * setup.honest.layout.size * 4


def setup_of(history: History, workers: int | None) -> Setup:
    """Return the setup of a simulated history, from the configuration in its notes."""
    engine = history.charter.engine
    if engine == "own":
        raise ConfigError(
            f"{history.path}: has no configuration of simulated clients; recover it with "
            "fedcrab.recover and your own fleet (docs/own-loop.md)"
        )
    if engine == "flower":
        raise ConfigError(
            f"{history.path}: recorded on Flower, where its clients are; recover it there: flwr run APP "
            "--run-config \"mode='recover' malicious='...'\" (docs/flower.md)"
        )
    if engine == "nvflare":
        raise ConfigError(
            f"{history.path}: recorded on NVIDIA FLARE, where its sites are; recover it there with a job "
            "that runs fedcrab.nvflare.Recovery (docs/nvflare.md)"
        )
    return prepare(Config.from_json(history.charter.notes), workers=workers)
