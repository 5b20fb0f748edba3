"""Trainings and recoveries of the site app in this process, and the same without Flower."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy
from loopback import RUN, Handler, Loopback, by_app
from siteapp import client, server, task

from fedcrab import History, Updates
from fedcrab.aggregate import fedavg
from fedcrab.flower import Patience, Recorder
from fedcrab.flower.arrays import array_layout
from fedcrab.train import train

SITES = [f"site-{i}" for i in range(8)]
HASTY = Patience(deadline=0.4, quorum=0.5, attempts=2, pause=0.01, poll=0.005)


def initial() -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in task.initial().items()})


def grid(handler: Handler | None = None, sites: Sequence[str] = SITES) -> Loopback:
    return Loopback(sites, handler or by_app(client.app))


def everyone(kind: type[FedAvg] = FedAvg, **settings: object) -> FedAvg:
    return kind(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1, **settings)


def recorded(
    path: Path, over: Loopback, rounds: int = 4, strategy: Strategy | None = None, **settings: object
) -> History:
    settings = {"patience": HASTY, "evaluate_fn": server.evaluated, **settings}
    recorder = Recorder(strategy or everyone(), path, **settings)
    recorder.start(over, initial(), num_rounds=rounds)
    return History.open(path)


def context(**config: object) -> Context:
    return Context(RUN, 1, {}, RecordDict(), config)


class Plain:
    """The same sites as a fleet of one process, without Flower."""

    model = array_layout(initial())

    def train(self, model, clients, *, round, epochs=None) -> Updates:
        answers = {}
        for site in clients:
            made, count = local(self.model.arrays(model), site, round, epochs)
            answers[site] = self.model.flatten(made) - model, count
        return Updates.of(answers)

    def loss(self, model) -> float:
        return server.evaluated(0, self.model.arrays(model))["loss"]

    def divergence(self, before, after) -> float:
        p, q = (self.probabilities(m) for m in (before, after))
        return float((p * np.log(p / q)).sum(axis=1).mean())

    def probabilities(self, model) -> np.ndarray:
        flat = server.evaluated(0, self.model.arrays(model))["probabilities"]
        return np.array(flat).reshape(-1, task.CLASSES)


def local(arrays: ArrayRecord, site: str, t: int, epochs: int | None = None) -> tuple[ArrayRecord, int]:
    number = int(site.rpartition("-")[2])
    given = {name: array.numpy() for name, array in arrays.items()}
    made, count = task.local(given, number, t, epochs or 2, attacks=number == 2)
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in made.items()}), count


def plainly_recorded(path: Path, clients: Sequence[str] = SITES, rounds: int = 4, **settings) -> History:
    """The same training by fedcrab's own loop."""
    plain = Plain()
    start = plain.model.flatten(initial())
    options = {"initial_loss": plain.loss(start), "layout": plain.model.layout, **settings}
    with History.create(path, start, **options) as history:
        for _ in train(plain, clients, history, probe=plain, aggregate=fedavg(), rounds=rounds, seed=1):
            pass
    return History.open(path)
