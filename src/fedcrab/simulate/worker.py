"""A worker process: runs jobs until the process that started it ends.

The fleet and its workers exchange JSON messages, each after its length, with descriptors of shared memory.
Jobs are run by the same code in a worker and in the caller's process.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcrab.errors import ConfigError, FedcrabError
from fedcrab.simulate.client_data import map_arrays
from fedcrab.simulate.engines import engine_for, one_thread
from fedcrab.simulate.engines.plain import LocalTraining, Task
from fedcrab.simulate.machine import Workplace
from fedcrab.simulate.models import Architecture, frozen_hash
from fedcrab.types import ClientId

HEAD = struct.Struct("!QI")  # bytes of the message, number of descriptors
MOST_DESCRIPTORS = 250  # a message carries at most these; the system allows 253
Message = dict[str, Any]


def send(channel: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send one message; the descriptors are sent with its header."""
    body = json.dumps(message).encode()
    head = HEAD.pack(len(body), len(descriptors))
    if descriptors:
        socket.send_fds(channel, [head], descriptors)
    else:
        channel.sendall(head)
    channel.sendall(body)


def receive(channel: socket.socket) -> tuple[Message, list[int]] | None:
    """Return the next message and its descriptors; None when the other end has closed."""
    head, descriptors, _, _ = socket.recv_fds(channel, HEAD.size, MOST_DESCRIPTORS)
    rest = _exactly(channel, HEAD.size - len(head)) if head else None
    if rest is None:
        return None
    size, _ = HEAD.unpack(head + rest)
    body = _exactly(channel, size)
    return None if body is None else (json.loads(body), list(descriptors))


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    pieces = bytearray()
    while len(pieces) < size:
        piece = channel.recv(min(size - len(pieces), 1 << 20))
        if not piece:
            return None
        pieces += piece
    return bytes(pieces)


Arrays = Mapping[int, list[NDArray[np.generic]]]  # by the number of their shared memory


@dataclass(frozen=True, slots=True)
class ClientJob:
    """One client in a job: the row of its update, and where its examples are."""

    client: ClientId
    row: int
    memory: int
    begin: int
    count: int


@dataclass(frozen=True, slots=True)
class Job:
    """Clients to train from the model in shared memory ``call``, which also receives their updates."""

    call: int
    round: int
    epochs: int
    shares: tuple[ClientJob, ...]

    def memories(self) -> set[int]:
        """The shared memory that the job needs."""
        return {self.call, *(share.memory for share in self.shares)}

    def to_message(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Job:
        """Return the job that :meth:`to_message` wrote."""
        shares = tuple(ClientJob(**share) for share in message["shares"])
        return cls(message["call"], message["round"], message["epochs"], shares)


class JobRunner:
    """Runs jobs: one module and its engine, on one thread."""

    def __init__(
        self, architecture: Architecture, local: LocalTraining, *, seed: int, workplace: Workplace
    ) -> None:
        module = architecture.build()
        self.frozen = frozen_hash(module)
        self._engine = engine_for(module, local, seed=seed, shape=architecture.shape, workplace=workplace)

    @property
    def together(self) -> int:
        """How many clients should be in one job."""
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

    def _task(self, share: ClientJob, arrays: Arrays, updates: NDArray[np.generic]) -> Task:
        x, y = arrays[share.memory]
        rows = slice(share.begin, share.begin + share.count)
        update = torch.from_numpy(updates[share.row])
        held = (share.memory, share.begin, share.count)
        return Task(share.client, torch.from_numpy(x[rows]), torch.from_numpy(y[rows]), update, held)


def _sentence(job: Job, problem: Exception) -> str:
    names = ", ".join(share.client for share in job.shares[:5]) + (", …" if len(job.shares) > 5 else "")
    return f"round {job.round}, training of {names} failed: {type(problem).__name__}: {problem}"


def split_clients(counts: Sequence[int], *, together: int, workers: int) -> list[list[int]]:
    """Return the positions of clients as jobs, the largest first, so that workers finish together.

    Engines that stack clients get up to ``together`` of similar size in a job. For others a job has half of a
    worker's share of what is left: few messages at first, and small jobs at the end.
    """
    order = sorted(range(len(counts)), key=lambda place: (-counts[place], place))
    if workers < 2:
        return [order] if order else []
    left = sum(counts)
    most = together if together > 1 else len(order)
    jobs: list[list[int]] = []
    cost, share = 0, left / (2 * workers)
    for place in order:
        if not jobs or len(jobs[-1]) >= most or cost >= share:
            jobs.append([])
            cost = 0
            share = left / (2 * workers) if together == 1 else share
        jobs[-1].append(place)
        cost += counts[place]
        left -= counts[place]
    return jobs


Inbox = queue.SimpleQueue[tuple[Message, list[int]]]


def main(descriptor: int) -> None:
    """Serve the socket with this descriptor."""
    torch.set_num_threads(1)
    channel = socket.socket(fileno=descriptor)
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, inbox), daemon=True).start()
    bench: JobRunner | None = None
    arrays: dict[int, list[NDArray[np.generic]]] = {}
    while True:
        message, descriptors = inbox.get()
        try:
            if bench is None:
                bench = _bench(message)
                continue
            _share(message, descriptors, arrays)
            bench.run(Job.from_message(message["job"]), arrays)
            answer: Message = {"ok": True}
        except FedcrabError as problem:
            answer = {"ok": False, "problem": str(problem)}
        try:
            send(channel, answer)
        except OSError:  # the other end has closed, as after Ctrl-C
            return


def _listen(channel: socket.socket, inbox: Inbox) -> None:
    """Pass messages on; exit at once, even during a job, when the other end closes."""
    try:
        while (received := receive(channel)) is not None:
            inbox.put(received)
    finally:
        os._exit(0)


def _bench(message: Message) -> JobRunner:
    described = message["architecture"]
    architecture = Architecture(described["name"], tuple(described["shape"]), described["classes"])
    local, workplace = LocalTraining(**message["local"]), Workplace(**message["workplace"])
    bench = JobRunner(architecture, local, seed=message["seed"], workplace=workplace)
    if bench.frozen != message["frozen"]:
        raise ConfigError(
            f"model {architecture.name!r}: its frozen parameters differ between processes; load them from "
            "a file, or draw them with torch alone, which is seeded"
        )
    return bench


def _share(message: Message, descriptors: list[int], arrays: dict[int, list[NDArray[np.generic]]]) -> None:
    for number in message["drop"]:
        arrays.pop(number, None)
    for (number, spec), descriptor in zip(message["map"], descriptors, strict=True):
        arrays[number] = map_arrays(descriptor, spec)
        os.close(descriptor)
