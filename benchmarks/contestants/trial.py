"""What every contestant is given and what it reports; numpy alone, since each has its own environment."""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

TICK = 1 / os.sysconf("SC_CLK_TCK")


def core_seconds():
    """What this process and all its descendants have used so far, whatever else the machine does.

    By the scheduler's own count, in nanoseconds, of the threads that there are.
    """
    children = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:  # gone in the meantime
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    family = [os.getpid()]
    for pid in family:
        family += children.get(pid, [])
    return sum(map(_nanoseconds, family)) / 1e9


def _nanoseconds(pid):
    used = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # gone in the meantime
            used += int(path.read_text().split()[0])
    return used


def age():
    """Seconds since this process was started: imports and all."""
    started = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]) * TICK
    return float(Path("/proc/uptime").read_text().split()[0]) - started


class Trial:
    """The settings and the data of one run: clients × examples, the same for all contestants."""

    def __init__(self):
        settings = json.loads(sys.argv[1])
        self.path = settings["data"]
        self.model, self.cores, self.threads = settings["model"], settings["cores"], settings["threads"]
        self.processes = settings["processes"]
        self.epochs, self.rounds, self.batch = settings["epochs"], settings["rounds"], settings["batch"]
        self.learning_rate = settings["learning_rate"]
        folder = Path(self.path)
        self.x, self.y = np.load(folder / "x.npy", mmap_mode="c"), np.load(folder / "y.npy")
        self.test_x, self.test_y = np.load(folder / "test_x.npy"), np.load(folder / "test_y.npy")
        self.clients, self.examples = self.y.shape
        self._rates, self._core_rates, self._first = [], [], 0.0
        self._begin()

    def _begin(self):
        self._begun, self._core_begun = time.perf_counter(), core_seconds()

    def round_done(self):
        """To be called at the end of every round: says so, and waits for the next turn."""
        seconds, used = time.perf_counter() - self._begun, core_seconds() - self._core_begun
        samples = self.clients * self.examples * self.epochs
        self._first = self._first or age()
        self._rates.append(samples / seconds)
        self._core_rates.append(samples / max(used, TICK))
        if len(self._rates) < self.rounds:
            print("ROUND", flush=True)
            if not sys.stdin.readline():  # whoever gave the turns is gone
                os._exit(1)
        self._begin()

    def report(self, accuracy):
        """Print the result: the rates of all rounds but the first, in which compilers and caches warm up.

        ``first`` is how many seconds the first one took, counted from the start of the process.
        """
        assert len(self._rates) == self.rounds, (len(self._rates), self.rounds)
        result = {
            "rates": self._rates[1:],
            "core_rates": self._core_rates[1:],
            "first": self._first,
            "accuracy": float(accuracy),
        }
        print("RESULT " + json.dumps(result), flush=True)
        os._exit(0)  # some frameworks take long to leave
