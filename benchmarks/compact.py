"""What Compact(4) costs compared with Selective and Everything: CPU seconds of recording, and bytes.

usage: python benchmarks/compact.py [--numbers N] [--rounds N] [--repeats N]

20 clients and a model of N numbers (101,770: an MLP 784-128-10); updates are drawn by seed. Selective and
Compact record the same rounds in turns; the first in one round is the second in the next. Everything records
them afterwards: it writes eight times as much as Compact, and slows down what is recorded beside it. CPU time
of the process is compared, threads included, because a busy machine slows all of them down in the same way.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from fedcrab import Compact, Everything, History, Round, Selective, Updates
from fedcrab.aggregate import fedavg
from fedcrab.seeds import rng_for

CLIENTS = [f"{c:02}" for c in range(20)]
SELECTIONS = {"selective": Selective(), "compact": Compact(), "everything": Everything()}


def recorded(
    names: tuple[str, ...], rounds: int, size: int, seed: int, place: Path
) -> dict[str, tuple[float, int]]:
    """CPU seconds and bytes of each of these histories, which take turns."""
    model = rng_for(seed, "model").normal(0, 0.05, size).astype(np.float32)
    histories = {
        name: History.create(place / name, model, initial_loss=1.0, selection=SELECTIONS[name], seed=seed)
        for name in names
    }
    spent, rule = dict.fromkeys(names, 0.0), fedavg()
    for t in range(rounds):
        rng = rng_for(seed, t)
        shared = rng.normal(0, 0.002, size)
        rows = {c: ((shared + rng.normal(0, 0.002, size)).astype(np.float32), 300) for c in CLIENTS}
        updates = Updates.of(rows)
        step = rule(updates.vectors, updates.weights)
        for name in names if t % 2 else reversed(names):
            spent[name] -= time.process_time()
            now = Round(t, model, updates, step, 0.97**t, float(rng_for(seed, "d", t).random()))
            histories[name].record(now)
            spent[name] += time.process_time()
        model = model + step
    for name, history in histories.items():
        spent[name] -= time.process_time()
        history.close()
        spent[name] += time.process_time()
    return {name: (spent[name], history.bytes()["total"]) for name, history in histories.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", type=int, default=101_770)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    runs = []
    for seed in range(arguments.repeats):
        run: dict[str, tuple[float, int]] = {}
        for names in (("selective", "compact"), ("everything",)):
            with tempfile.TemporaryDirectory() as place:
                run |= recorded(names, arguments.rounds, arguments.numbers, seed, Path(place))
        runs.append(run)
    print("| history | CPU, ms per round | beside Selective | MB | of Everything |\n|---|---|---|---|---|")
    for name in SELECTIONS:
        cpu = median(run[name][0] for run in runs) / arguments.rounds
        ratio = median(run[name][0] / run["selective"][0] for run in runs)
        size, share = runs[0][name][1] / 1e6, runs[0][name][1] / runs[0]["everything"][1]
        print(f"| {name} | {1000 * cpu:.0f} | {ratio:.2f} | {size:.1f} | 1/{1 / share:.1f} |")


if __name__ == "__main__":
    main()
