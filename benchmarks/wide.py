"""Many clients in the partition, few of them a round: what the other 9,900 cost.

    FEDCRAB_DATA=... python benchmarks/wide.py

Two fleets with the CNN take turns: one of 10,000 clients of which 100 are drawn each round, one of 100
clients in all, each with as many examples. Prints the best round of each, their ratio, and the memory.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from fedcrab.simulate import SimulatedFleet, iid, initial_model, load_dataset

CLIENTS, ASKED, ROUNDS = 10_000, 100, 8


def memory(fleet: SimulatedFleet) -> tuple[float, float]:
    """Gigabytes: the largest resident set of a process, and all of them with shared pages counted once."""
    assert fleet._plant.workers is not None
    pids = [os.getpid(), *(worker.process.pid for worker in fleet._plant.workers._started)]
    lines = [Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in pids]
    kinds = {
        kind: [int(line.split()[1]) / 2**20 for text in lines for line in text if line.startswith(kind)]
        for kind in ("Rss", "Pss:")
    }
    return max(kinds["Rss"]), sum(kinds["Pss:"])


def main() -> None:
    mnist = load_dataset("mnist")
    parts = iid(mnist.train_y, clients=CLIENTS, seed=0)
    rng = np.random.default_rng(0)
    times: dict[int, list[float]] = {CLIENTS: [], ASKED: []}
    with (
        SimulatedFleet(mnist, parts, "cnn", seed=0) as wide,
        SimulatedFleet(mnist, parts[:ASKED], "cnn", seed=0) as narrow,
    ):
        model = initial_model(wide.architecture, seed=0)
        for index in range(ROUNDS):
            for fleet in (wide, narrow):
                asked = [str(i) for i in rng.choice(len(fleet.clients), ASKED, replace=False)]
                begin = time.perf_counter()
                fleet.train(model, asked, round=index)
                times[len(fleet.clients)].append(time.perf_counter() - begin)
        best = {clients: min(seconds[1:]) for clients, seconds in times.items()}
        resident, together = memory(wide)
    for clients, seconds in best.items():
        print(f"{clients:>6} clients, {ASKED} a round: {seconds:.3f} s a round")
    print(f"ratio {best[CLIENTS] / best[ASKED]:.2f}")
    print(f"largest process {resident:.2f} GB resident, all together {together:.2f} GB")


if __name__ == "__main__":
    main()
