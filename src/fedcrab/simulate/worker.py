"""A worker: does jobs one after the other until the process that started it is gone."""

from __future__ import annotations

import os
import queue
import socket
import threading

import numpy as np
import torch
from numpy.typing import NDArray

from fedcrab.errors import FedcrabError
from fedcrab.simulate.local import LocalTraining
from fedcrab.simulate.memory import map_arrays
from fedcrab.simulate.messages import Message, receive, send
from fedcrab.simulate.models import Architecture
from fedcrab.simulate.work import Bench, Job

Inbox = queue.SimpleQueue[tuple[Message, list[int]]]


def main(descriptor: int) -> None:
    """Serve the socket with this descriptor."""
    torch.set_num_threads(1)
    channel = socket.socket(fileno=descriptor)
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, inbox), daemon=True).start()
    bench: Bench | None = None
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
        send(channel, answer)


def _listen(channel: socket.socket, inbox: Inbox) -> None:
    """Pass messages on; leave at once, even from within a job, when the other end is gone."""
    try:
        while (received := receive(channel)) is not None:
            inbox.put(received)
    finally:
        os._exit(0)


def _bench(message: Message) -> Bench:
    described = message["architecture"]
    architecture = Architecture(described["name"], tuple(described["shape"]), described["classes"])
    return Bench(architecture, LocalTraining(**message["local"]), seed=message["seed"])


def _share(message: Message, descriptors: list[int], arrays: dict[int, list[NDArray[np.generic]]]) -> None:
    for number in message["drop"]:
        arrays.pop(number, None)
    for (number, spec), descriptor in zip(message["map"], descriptors, strict=True):
        arrays[number] = map_arrays(descriptor, spec)
        os.close(descriptor)
