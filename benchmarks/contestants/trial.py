"""What every contestant is given and what it reports; numpy alone, since each has its own environment."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np


class Trial:
    """The settings and the data of one run: clients x examples, the same for all contestants."""

    def __init__(self):
        settings = json.loads(sys.argv[1])
        self.path = settings["data"]
        self.model, self.cores, self.threads = settings["model"], settings["cores"], settings["threads"]
        self.epochs, self.rounds, self.batch = settings["epochs"], settings["rounds"], settings["batch"]
        self.learning_rate = settings["learning_rate"]
        folder = Path(self.path)
        self.x, self.y = np.load(folder / "x.npy"), np.load(folder / "y.npy")
        self.test_x, self.test_y = np.load(folder / "test_x.npy"), np.load(folder / "test_y.npy")
        self.clients, self.examples = self.y.shape
        self._times = [time.perf_counter()]

    def round_done(self):
        """To be called at the end of every round."""
        self._times.append(time.perf_counter())

    def report(self, accuracy, note=""):
        """Print the result; the first round is left out, in it compilers and caches warm up."""
        seconds = np.diff(self._times)[1:]
        assert len(seconds) == self.rounds - 1, (len(seconds), self.rounds)
        samples = self.clients * self.examples * self.epochs
        rates = [float(samples / s) for s in seconds]
        print("RESULT " + json.dumps({"rates": rates, "accuracy": float(accuracy), "note": note}), flush=True)
        sys.stdout.flush()
        os._exit(0)  # some frameworks take long to leave
