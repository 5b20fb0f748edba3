"""An executor of independent processes: one that dies does not affect the others.

``ProcessPoolExecutor`` abandons all its work when one process dies. Here each process has its own pool.
Messages from a running process are passed to the function that the executor was created with.

Where the system can fork, the processes are forks of one that has imported what all of them need and has no
threads: torch and scikit-learn are imported once, not once per process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Queue
from typing import Any

from fedcrab.simulate.workers import KEEP_PAGES

FORKS = "forkserver" in multiprocessing.get_all_start_methods()
CONTEXT = multiprocessing.get_context("forkserver" if FORKS else "spawn")
IMPORTED = ("fedcrab.experiment.compute", "torch", "sklearn.datasets")  # by the process that forks
_PARENT: list[Connection] = []  # in a process of the executor: the connection for its messages


class Processes(Executor):
    """Runs at most ``count`` calls at a time, each in a process; processes are reused."""

    def __init__(self, count: int, on_message: Callable[[Any], None]) -> None:
        self._threads = ThreadPoolExecutor(count)
        self._all = [_Slot(on_message) for _ in range(count)]
        self._idle: Queue[_Slot] = Queue()
        for slot in self._all:
            self._idle.put(slot)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in a process; the future fails with ``BrokenExecutor`` if that process dies."""
        return self._threads.submit(self._call, function, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes immediately; files that they were writing are complete or absent."""
        self._threads.shutdown(wait=False, cancel_futures=cancel_futures)
        for slot in self._all:
            slot.close()
        self._threads.shutdown(wait=wait)

    def _call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        slot = self._idle.get()
        try:
            return slot.call(function, *args, **kwargs)
        finally:
            self._idle.put(slot)


class _Slot:
    """One process at a time; a dead one is replaced."""

    def __init__(self, on_message: Callable[[Any], None]) -> None:
        self._on_message, self._lock, self._closed = on_message, threading.Lock(), False
        self._pool: ProcessPoolExecutor | None = None
        self._pid = 0  # none

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return self._started().submit(function, *args, **kwargs).result()
        except BrokenExecutor:
            with self._lock:
                self._forget()
            raise

    def close(self) -> None:
        """End the process for good."""
        with self._lock:
            self._closed = True
            if self._pid:
                with suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)
            self._forget()

    def _started(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._closed:
                raise BrokenExecutor("the executor is shut down")
            if self._pool is None:
                receiver, sender = CONTEXT.Pipe(duplex=False)
                for name, value in KEEP_PAGES.items():
                    os.environ.setdefault(name, value)  # the allocator of a new process reads these
                if FORKS:
                    CONTEXT.set_forkserver_preload([*IMPORTED])
                self._pool = ProcessPoolExecutor(1, CONTEXT, _begin, (sender,))
                self._pid = self._pool.submit(os.getpid).result()
                sender.close()
                threading.Thread(target=self._listen, args=[receiver], daemon=True).start()
            return self._pool

    def _listen(self, receiver: Connection) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._on_message(receiver.recv())

    def _forget(self) -> None:
        pool, self._pool, self._pid = self._pool, None, 0
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _begin(parent: Connection) -> None:
    """Prepare a new process: exit when the parent is gone, and ignore Ctrl-C, which the parent handles."""
    _PARENT[:] = [parent]
    os.setpgid(0, 0)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(1)  # other jobs or workers use the other cores


def _leave_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(0)


def tell_parent(message: Any) -> None:
    """Send a message to the creator of the executor that this process belongs to."""
    for parent in _PARENT:
        parent.send(message)
