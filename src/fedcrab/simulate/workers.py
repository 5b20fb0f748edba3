"""The worker processes of a fleet, one thread each.

They are programs of their own, neither forks (unsafe once torch has threads) nor spawned copies of the
caller's script (which would have to be written for it). They hold nothing but their end of a socket: when
this process ends, in whatever way, they see it close and leave.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict

from fedcrab.errors import ConfigError, FedcrabError
from fedcrab.simulate.client_data import Shared
from fedcrab.simulate.engines.plain import LocalTraining
from fedcrab.simulate.machine import Workplace
from fedcrab.simulate.models import Architecture
from fedcrab.simulate.worker import Job, Message, receive, send

PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from fedcrab.simulate.worker import main; main(int(sys.argv[1]))"
)
# Tensors of a few megabytes come and go with every batch; by default the C library hands their pages back
# to the system each time and faults them in again.
KEEP_PAGES = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}


class _Worker:
    """One process, and what it has been told so far."""

    def __init__(self, greeting: Message) -> None:
        self.channel, theirs = socket.socketpair()
        self.known: set[int] = set()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603  our own interpreter and program
                [sys.executable, "-c", PROGRAM, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**KEEP_PAGES, **os.environ},
                process_group=0,  # Ctrl-C is for the caller, who then lets the workers go
            )
        send(self.channel, greeting)

    def give(self, job: Job, shared: Mapping[int, Shared]) -> None:
        """Send a job, with the shared memory that it needs and the worker does not have yet."""
        fresh = sorted(job.memories() - self.known)
        gone = sorted(self.known - set(shared))
        mapped = [[number, shared[number].spec] for number in fresh]
        message = {"job": job.to_message(), "map": mapped, "drop": gone}
        send(self.channel, message, [shared[number].descriptor for number in fresh])
        self.known = (self.known | set(fresh)) - set(gone)

    def answer(self) -> None:
        """Take the answer to a job; a problem becomes an error here, and so does no answer."""
        received = receive(self.channel)
        if received is None:
            raise BrokenPipeError
        if not received[0]["ok"]:
            raise ConfigError(received[0]["problem"])


class Workers:
    """Processes that do jobs; started when first needed, and again after an interrupted round."""

    def __init__(
        self,
        count: int,
        architecture: Architecture,
        local: LocalTraining,
        *,
        seed: int,
        workplace: Workplace,
        frozen: str,  # the hash of what is no part of the model's vector
    ) -> None:
        self.count, self._lock = count, threading.Lock()
        self._greeting: Message = {
            "architecture": asdict(architecture),
            "local": asdict(local),
            "seed": seed,
            "workplace": asdict(workplace),
            "frozen": frozen,
        }
        self._started: list[_Worker] = []
        weakref.finalize(self, _let_go, self._started, os.getpid())

    def run(self, jobs: Sequence[Job], shared: Mapping[int, Shared]) -> None:
        """Do all jobs, each by the first worker that is free; ``shared`` is all memory still in use."""
        with self._lock:
            try:
                self._start(min(self.count, len(jobs)))
                self._hand_out(dict(enumerate(jobs)), shared)
            except (BrokenPipeError, ConnectionResetError) as problem:
                self.close()
                raise FedcrabError(
                    "a worker of the simulator ended in the middle of a round, perhaps out of memory; "
                    "take fewer workers"
                ) from problem
            except BaseException:  # also Ctrl-C: jobs are under way whose answers nobody will want
                self.close()
                raise

    def _start(self, needed: int) -> None:
        while len(self._started) < needed:
            self._started.append(_Worker(self._greeting))

    def _hand_out(self, waiting: dict[int, Job], shared: Mapping[int, Shared]) -> None:
        with selectors.DefaultSelector() as busy:
            for place, worker in enumerate(self._started):
                if waiting:
                    worker.give(self._take(waiting, place), shared)
                    busy.register(worker.channel, selectors.EVENT_READ, place)
            while busy.get_map():
                for key, _ in busy.select():
                    worker = self._started[key.data]
                    worker.answer()
                    if waiting:
                        worker.give(self._take(waiting, key.data), shared)
                    else:
                        busy.unregister(key.fileobj)

    def _take(self, waiting: dict[int, Job], place: int) -> Job:
        """The first of the jobs that fall to this worker in every round, else the last of any.

        It may have kept what it made of those clients' examples; of others' jobs it takes the same few, the
        least, in every round.
        """
        own = (number for number in waiting if number % len(self._started) == place)
        return waiting.pop(next(own, next(reversed(waiting))))

    def close(self) -> None:
        """End the processes; the next job starts new ones."""
        _let_go(self._started, os.getpid())


def _let_go(workers: list[_Worker], owner: int) -> None:
    for worker in workers:
        worker.channel.close()
    for worker in workers if os.getpid() == owner else []:  # a fork of this process has no say
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(timeout=0.5)
            continue
        worker.process.kill()  # one still importing, or deep in a long operation
        worker.process.wait()
    workers.clear()
