"""The clients of a trial dealt out to processes, one thread each, as a clever user would do it.

The sum of the clients' models after a round is all that comes back: half a megabyte per process.
"""

import multiprocessing
from contextlib import suppress

import numpy as np


def _serve(pipe, make, clients):
    train = make(clients)
    with suppress(EOFError):  # the process that asks is gone
        while True:
            pipe.send(train(pipe.recv()))


class Halves:
    """``make(clients)`` gives the function model → sum of these clients' models, of flat vectors.

    With one process it runs in this one. ``make`` is a function of a module, so that a new process finds it.
    """

    def __init__(self, make, clients, processes):
        self.clients, self._pipes, self._train = clients, [], None
        if processes == 1:
            self._train = make(range(clients))
            return
        context = multiprocessing.get_context("spawn")
        for part in np.array_split(np.arange(clients), processes):
            ours, theirs = context.Pipe()
            context.Process(target=_serve, args=(theirs, make, part.tolist()), daemon=True).start()
            self._pipes.append(ours)

    def average(self, model):
        """The mean of the clients' models after one round from this one."""
        if self._train is not None:
            return self._train(model) / self.clients
        for pipe in self._pipes:
            pipe.send(model)
        return sum(pipe.recv() for pipe in self._pipes) / self.clients
