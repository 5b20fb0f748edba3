"""What is handed to a worker, and the doing of it: the same code in a worker and in the caller's process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.simulate.engine import engine_for, one_thread
from fedcrab.simulate.local import LocalTraining, Task
from fedcrab.simulate.models import Architecture
from fedcrab.types import ClientId

Arrays = Mapping[int, list[NDArray[np.generic]]]  # by the number of the shared memory they are in


@dataclass(frozen=True, slots=True)
class Share:
    """One client in a job: the row of its update, and where its examples are."""

    client: ClientId
    row: int
    memory: int
    begin: int
    count: int


@dataclass(frozen=True, slots=True)
class Job:
    """Clients to train from the model in shared memory ``call``, which takes their updates too."""

    call: int
    round: int
    epochs: int
    shares: tuple[Share, ...]

    def memories(self) -> set[int]:
        """The shared memory that it needs."""
        return {self.call, *(share.memory for share in self.shares)}

    def to_message(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Job:
        """The inverse of ``to_message``."""
        shares = tuple(Share(**share) for share in message["shares"])
        return cls(message["call"], message["round"], message["epochs"], shares)


class Bench:
    """Where jobs are done: one module and its engine, on one thread."""

    def __init__(self, architecture: Architecture, local: LocalTraining, *, seed: int) -> None:
        self._engine = engine_for(architecture.build(), local, seed=seed, shape=architecture.shape)

    @property
    def together(self) -> int:
        """How many clients gain from being in one job."""
        return self._engine.together

    def run(self, job: Job, arrays: Arrays) -> None:
        """Train the job's clients and write their updates."""
        model, updates = arrays[job.call]
        tasks = [self._task(share, arrays, updates) for share in job.shares]
        try:
            with one_thread():
                self._engine.train(torch.from_numpy(model), tasks, round=job.round, epochs=job.epochs)
        except Exception as problem:  # a user's module may raise anything
            raise ConfigError(_sentence(job, problem)) from problem

    def _task(self, share: Share, arrays: Arrays, updates: NDArray[np.generic]) -> Task:
        x, y = arrays[share.memory]
        rows = slice(share.begin, share.begin + share.count)
        update = torch.from_numpy(updates[share.row])
        held = (share.memory, share.begin, share.count)
        return Task(share.client, torch.from_numpy(x[rows]), torch.from_numpy(y[rows]), update, held)


def _sentence(job: Job, problem: Exception) -> str:
    names = ", ".join(share.client for share in job.shares[:5]) + (", …" if len(job.shares) > 5 else "")
    return f"round {job.round}, training of {names} failed: {type(problem).__name__}: {problem}"


def deal(counts: Sequence[int], *, together: int, workers: int) -> list[list[int]]:
    """Places of clients cut into jobs, the costliest first, so that idle workers even out at the end.

    Neighbours in size go together, as an engine that stacks them likes it.
    """
    order = sorted(range(len(counts)), key=lambda place: (-counts[place], place))
    if workers < 2:
        return [order] if order else []
    share = sum(counts) / (workers * (2 if together > 1 else 8))
    most = together if together > 1 else len(order)
    jobs: list[list[int]] = []
    cost = 0
    for place in order:
        if not jobs or len(jobs[-1]) >= most or cost >= share:
            jobs.append([])
            cost = 0
        jobs[-1].append(place)
        cost += counts[place]
    return jobs
