"""The worker processes of a fleet, one thread each.

They are separate programs: neither forks (unsafe once torch has threads) nor spawned copies of the caller's
script (which would have to support that). They only have their end of a socket: when this process ends, in
any way, the socket closes and they exit.
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
# Every batch allocates and frees tensors of a few megabytes. By default the C library returns their pages to
# the system each time, and has to request them again.
KEEP_PAGES = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}

AHEAD = 2  # jobs of a worker: one that runs, and the next, so that it need not wait for this process


class _Worker:
    """One process, and what it has been sent so far."""

    def __init__(self, greeting: Message) -> None:
        self.channel, theirs = socket.socketpair()
        self.known: set[int] = set()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603  our own interpreter and program
                [sys.executable, "-c", PROGRAM, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**KEEP_PAGES, **os.environ},
                process_group=0,  # Ctrl-C goes to the caller, which then stops the workers
            )
        send(self.channel, greeting)

    def give(self, job: Job, shared: Mapping[int, Shared]) -> None:
        """Send a job, with the shared memory that it needs and the worker does not have yet."""
        fresh = sorted(job.memories() - self.known)
        stale = sorted(self.known - set(shared))
        mapped = [[number, shared[number].spec] for number in fresh]
        message = {"job": job.to_message(), "map": mapped, "drop": stale}
        send(self.channel, message, [shared[number].descriptor for number in fresh])
        self.known = (self.known | set(fresh)) - set(stale)

    def answer(self) -> None:
        """Receive the answer to a job; raise if there was a problem, or no answer."""
        received = receive(self.channel)
        if received is None:
            raise BrokenPipeError
        if not received[0]["ok"]:
            raise ConfigError(received[0]["problem"])


class Workers:
    """Processes that run jobs; started on first use, and again after an interrupted round."""

    def __init__(
        self,
        count: int,
        architecture: Architecture,
        local: LocalTraining,
        *,
        seed: int,
        workplace: Workplace,
        frozen: str,  # the hash of the frozen parameters
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
        """Run all jobs, each on the first free worker; ``shared`` is all memory still in use."""
        with self._lock:
            try:
                self._start(min(self.count, len(jobs)))
                self._hand_out(dict(enumerate(jobs)), shared)
            except (BrokenPipeError, ConnectionResetError) as problem:
                self.close()
                raise FedcrabError(
                    "a worker of the simulator ended during a round, perhaps because it ran out of memory; "
                    "use fewer workers"
                ) from problem
            except BaseException:  # including Ctrl-C: nobody will collect the answers of the running jobs
                self.close()
                raise

    def _start(self, needed: int) -> None:
        while len(self._started) < needed:
            self._started.append(_Worker(self._greeting))

    def _hand_out(self, waiting: dict[int, Job], shared: Mapping[int, Shared]) -> None:
        """Keep every worker busy: while there are many jobs, each has a second one in its inbox."""
        running = dict.fromkeys(range(len(self._started)), 0)
        with selectors.DefaultSelector() as answers:
            for place, worker in enumerate(self._started):
                answers.register(worker.channel, selectors.EVENT_READ, place)
            for _ in range(AHEAD):
                for place in running:
                    self._refill(place, running, waiting, shared)
            while any(running.values()):
                for key, _ in answers.select():
                    self._started[key.data].answer()
                    running[key.data] -= 1
                    self._refill(key.data, running, waiting, shared)

    def _refill(
        self, place: int, running: dict[int, int], waiting: dict[int, Job], shared: Mapping[int, Shared]
    ) -> None:
        """Give a worker its next job. The last jobs go to idle workers only, so that all finish together."""
        most = AHEAD if len(waiting) > len(self._started) else 1
        if waiting and running[place] < most:
            self._started[place].give(self._take(waiting, place), shared)
            running[place] += 1

    def _take(self, waiting: dict[int, Job], place: int) -> Job:
        """Return the first of the jobs that this worker gets in every round; otherwise the last of any.

        It may have cached data of those clients. From other workers' jobs it takes the same few, the
        smallest, in every round.
        """
        own = (number for number in waiting if number % len(self._started) == place)
        return waiting.pop(next(own, next(reversed(waiting))))

    def close(self) -> None:
        """Stop the processes; the next job starts new ones."""
        _let_go(self._started, os.getpid())


def _let_go(workers: list[_Worker], owner: int) -> None:
    for worker in workers:
        worker.channel.close()
    for worker in workers if os.getpid() == owner else []:  # a fork of this process must not stop them
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(timeout=0.5)
            continue
        worker.process.kill()  # still importing, or in a long operation
        worker.process.wait()
    workers.clear()
