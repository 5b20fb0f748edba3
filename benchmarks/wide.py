"""Many clients: what clients cost that are not asked, whether the rate stays the same, and memory.

    FEDCRAB_DATA=... python benchmarks/wide.py [asked] [rate] [memory]

`asked`: two fleets with the CNN take turns. One has 10,000 clients and draws 100 in each round, the other has
100 clients in total; all have the same number of examples. `rate`: the MLP with 20, 200 and 1,000 clients of
600 images (drawn repeatedly from MNIST's 60,000), all asked in every round, five epochs, in turns; the last
one with the default cache and with 512 MB. `memory`: 10,000 clients with softmax regression, all asked.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from fedcrab.simulate import Dataset, LocalTraining, SimulatedFleet, iid, initial_model, load_dataset

MANY, ASKED, ROUNDS = 10_000, 100, 8


def memory(fleet: SimulatedFleet) -> tuple[float, float]:
    """Return gigabytes: the largest resident set of a process, and of all, with shared pages counted once."""
    assert fleet._plant.workers is not None
    pids = [os.getpid(), *(worker.process.pid for worker in fleet._plant.workers._started)]
    lines = [Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in pids]
    kinds = {
        kind: [int(line.split()[1]) / 2**20 for text in lines for line in text if line.startswith(kind)]
        for kind in ("Rss", "Pss:")
    }
    return max(kinds["Rss"]), sum(kinds["Pss:"])


def asked(mnist: Dataset) -> None:
    """Measure what 9,900 clients cost that are not asked."""
    parts = iid(mnist.train_y, clients=MANY, seed=0)
    rng = np.random.default_rng(0)
    times: dict[int, list[float]] = {MANY: [], ASKED: []}
    with (
        SimulatedFleet(mnist, parts, "cnn", seed=0) as wide,
        SimulatedFleet(mnist, parts[:ASKED], "cnn", seed=0) as narrow,
    ):
        model = initial_model(wide.architecture, seed=0)
        for index in range(ROUNDS):
            for fleet in (wide, narrow):
                drawn = [str(i) for i in rng.choice(len(fleet.clients), ASKED, replace=False)]
                begin = time.perf_counter()
                fleet.train(model, drawn, round=index)
                times[len(fleet.clients)].append(time.perf_counter() - begin)
        best = {clients: min(seconds[1:]) for clients, seconds in times.items()}
        resident, together = memory(wide)
    for clients, seconds in best.items():
        print(f"{clients:>6} clients, {ASKED} asked per round: {seconds:.3f} s per round")
    print(f"ratio {best[MANY] / best[ASKED]:.2f}")
    print(f"largest process {resident:.2f} GB resident, all together {together:.2f} GB")


def rate(mnist: Dataset) -> None:
    """Measure the MLP's rate with more and more clients."""
    examples = np.random.default_rng(0).integers(0, len(mnist.train_y), (1000, 600))
    local = LocalTraining(learning_rate=0.05, epochs=5)
    settings = [(20, None), (200, None), (1000, None), (1000, 512)]
    fleets = [
        SimulatedFleet(mnist, tuple(examples[:clients]), "mlp", seed=0, local=local, cache_mb=cache)
        for clients, cache in settings
    ]
    model = initial_model(fleets[0].architecture, seed=0)
    found: list[list[float]] = [[] for _ in fleets]
    for index in range(3):
        for fleet, rates in zip(fleets, found, strict=True):
            begin, repeats = time.perf_counter(), max(1, 200 // len(fleet.clients))
            for repeat in range(repeats):
                fleet.train(model, fleet.clients, round=index * repeats + repeat)
            rates.append(repeats * len(fleet.clients) * 3000 / (time.perf_counter() - begin))
    print("| clients | cache | samples per second | of 20 clients' rate | memory of all processes, GB |")
    print("|--:|--:|--:|--:|--:|")
    for (clients, cache), fleet, rates in zip(settings, fleets, found, strict=True):
        share = median(mine / first for mine, first in zip(rates[1:], found[0][1:], strict=True))
        limit = "default" if cache is None else f"{cache} MB"
        print(
            f"| {clients} | {limit} | {median(rates[1:]):,.0f} | {share:.2f} | {memory(fleet)[1]:.2f} |",
            flush=True,
        )


def small_model(mnist: Dataset) -> None:
    """Measure time and memory of 10,000 clients that are all asked."""
    local = LocalTraining(epochs=5, batch=8)
    parts = iid(mnist.train_y, clients=MANY, seed=0)
    with SimulatedFleet(mnist, parts, "softmax", seed=0, local=local) as fleet:
        model, taken = initial_model(fleet.architecture, seed=0), []
        for index in range(3):
            begin = time.perf_counter()
            updates = fleet.train(model, fleet.clients, round=index)
            taken.append(time.perf_counter() - begin)
            model = model + updates.vectors.mean(0)
        together = memory(fleet)[1]
    held, data = updates.vectors.nbytes / 2**30, mnist.train_x.nbytes / 2**30
    print(f"{MANY:,} clients, all asked: {median(taken):.2f} s per round, all together {together:.2f} GB,")
    print(f"including {held:.2f} GB of updates and {2 * data:.2f} GB for two copies of the data set")


TRIALS: dict[str, Callable[[Dataset], None]] = {"asked": asked, "rate": rate, "memory": small_model}


def main() -> None:
    mnist = load_dataset("mnist")
    for name in sys.argv[1:] or TRIALS:
        print(f"\n{name}")
        TRIALS[name](mnist)


if __name__ == "__main__":
    main()
