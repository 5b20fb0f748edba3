"""All clients in one machine, with the same interface as clients on a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedcrab.errors import ConfigError
from fedcrab.simulate.client_data import ClientExamples, Shared, SharedArrays, hold_examples, hold_parts
from fedcrab.simulate.data import Dataset, Images, Labels
from fedcrab.simulate.engines.plain import LocalTraining
from fedcrab.simulate.machine import MEGABYTE, Workplace, check_device, default_cache, default_workers
from fedcrab.simulate.models import Architecture, layout_of
from fedcrab.simulate.partition import Parts
from fedcrab.simulate.worker import ClientJob, Job, JobRunner, split_clients
from fedcrab.simulate.workers import Workers
from fedcrab.types import ClientId, Layout, Updates, Vector

MOST_ROUNDS = 2**32  # of one training


@dataclass(frozen=True, slots=True)
class _FleetParts:
    """What a fleet shares with those derived from it: the model, the settings and the workers."""

    architecture: Architecture
    local: LocalTraining
    layout: Layout
    shelf: SharedArrays
    bench: JobRunner
    workers: Workers | None  # None: train in this process


class SimulatedFleet:
    """Clients "0" to "n-1", each with its part of a data set.

    A client's update depends only on (seed, round, client, model, its examples, epochs), not on the number of
    workers or on which other clients are asked.
    """

    def __init__(
        self,
        dataset: Dataset,
        parts: Parts,
        architecture: Architecture | str = "mlp",
        *,
        seed: int,
        local: LocalTraining | None = None,
        workers: int | None = None,  # processes; 0: train in this one, None: FEDCRAB_WORKERS, or one per core
        device: str = "cpu",  # or "cuda" or "mps", if available
        cache_mb: int | None = None,  # cache of all workers, in megabytes; None: FEDCRAB_CACHE_MB, or 1/8
    ) -> None:
        check_device(device)
        if isinstance(architecture, str):
            architecture = Architecture(architecture, dataset.shape, dataset.classes)
        count = default_workers(device) if workers is None else workers
        cache = default_cache() if cache_mb is None else cache_mb * MEGABYTE
        if count < 0:
            raise ConfigError(f"workers must be 0 or more, got {count}")
        if cache < 0:
            raise ConfigError(f"cache_mb must be 0 or more, got {cache_mb}")
        workplace = Workplace(device, cache // max(count, 1))
        self._plant = _plant(architecture, local or LocalTraining(), seed, count, workplace)
        self._holdings = hold_parts(self._plant.shelf, dataset, parts)
        self._time = 0

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The client ids, in numeric order."""
        return tuple(self._holdings)

    @property
    def layout(self) -> Layout:
        """Says which slice of the model is which tensor."""
        return self._plant.layout

    @property
    def architecture(self) -> Architecture:
        """The model that the clients train."""
        return self._plant.architecture

    @property
    def workers(self) -> int:
        """The number of worker processes; 0 if this process trains the clients."""
        return self._plant.workers.count if self._plant.workers is not None else 0

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """Train these clients from ``model``; ``epochs`` overrides the settings."""
        asked, size = self._known(clients), self.layout.size
        epochs = self._plant.local.epochs if epochs is None else epochs
        if epochs < 0:
            raise ConfigError(f"epochs must be 0 or more, got {epochs}")
        if np.shape(model) != (size,):
            raise ConfigError(f"the model must have {size} numbers, got an array of shape {np.shape(model)}")
        call = self._plant.shelf.lend([("f4", [size]), ("f4", [len(asked), size])])
        call.arrays[0][:] = model
        self._run(self._jobs(call, asked, round, epochs))
        updates = self._plant.shelf.hand_out(call)[1].view(np.float32)
        weights = np.array([self._holdings[client].count for client in asked], np.float64)
        return Updates(asked, updates, weights)

    def _known(self, clients: Sequence[ClientId]) -> tuple[ClientId, ...]:
        asked = tuple(sorted(clients))
        unknown = [client for client in asked if client not in self._holdings]
        if unknown or len(set(asked)) != len(asked):
            problem = f"no client {unknown[0]!r}" if unknown else "a client is asked twice"
            raise ConfigError(f"{problem}; this fleet has '0' to '{len(self._holdings) - 1}', each once")
        return asked

    def _jobs(self, call: Shared, asked: Sequence[ClientId], round: int, epochs: int) -> list[Job]:
        held = [self._holdings[client] for client in asked]
        shares = [
            ClientJob(client, row, place.memory.number, place.begin, place.count)
            for row, (client, place) in enumerate(zip(asked, held, strict=True))
        ]
        counts = [place.count for place in held]
        dealt = split_clients(counts, together=self._plant.bench.together, workers=max(self.workers, 1))
        address = round if self._time == 0 else -1 - round - (self._time - 1) * MOST_ROUNDS  # of orders
        return [Job(call.number, address, epochs, tuple(shares[place] for place in job)) for job in dealt]

    def _run(self, jobs: Sequence[Job]) -> None:
        pieces = self._plant.shelf.pieces()
        if self._plant.workers is not None:
            self._plant.workers.run(jobs, pieces)
            return
        arrays = {number: piece.arrays for number, piece in pieces.items()}
        for job in jobs:
            self._plant.bench.run(job, arrays)

    def examples(self, client: ClientId) -> tuple[Images, Labels]:
        """Return this client's training examples, read-only."""
        self._known([client])
        return self._holdings[client].examples()

    def with_examples(self, replaced: Mapping[ClientId, tuple[Images, Labels]]) -> SimulatedFleet:
        """Return the same fleet with other data for these clients; workers and all other data are shared."""
        self._known(list(replaced))
        plant, described = self._plant, self._plant.architecture
        other = hold_examples(plant.shelf, replaced, shape=described.shape, classes=described.classes)
        return _derived(plant, self._holdings | other, self._time)

    def training_again(self, time: int = 1) -> SimulatedFleet:
        """Return the same clients at another time (1, 2, …), at which they draw different batches."""
        return _derived(self._plant, self._holdings, time)

    def close(self) -> None:
        """Stop the workers of this fleet and of those derived from it; ``train`` starts them again."""
        if self._plant.workers is not None:
            self._plant.workers.close()

    def __enter__(self) -> Self:
        """Stop the workers at the end of the ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers."""
        self.close()


def _derived(plant: _FleetParts, holdings: dict[ClientId, ClientExamples], time: int) -> SimulatedFleet:
    fleet = object.__new__(SimulatedFleet)
    fleet._plant, fleet._holdings, fleet._time = plant, holdings, time
    return fleet


def _plant(
    architecture: Architecture, local: LocalTraining, seed: int, workers: int, workplace: Workplace
) -> _FleetParts:
    if workers and architecture.name.startswith("__main__:"):
        raise ConfigError(
            f"model {architecture.name!r} cannot be found by worker processes; "
            "put it in a module of its own, or use workers=0"
        )
    layout = layout_of(architecture.build())
    bench = JobRunner(architecture, local, seed=seed, workplace=workplace)
    processes = None
    if workers:
        processes = Workers(workers, architecture, local, seed=seed, workplace=workplace, frozen=bench.frozen)
    return _FleetParts(architecture, local, layout, SharedArrays(), bench, processes)
