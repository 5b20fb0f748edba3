"""The plain loop, which trains any module, against a bare torch loop: in one process, taking turns.

usage: python benchmarks/plain.py [--turns N]

One thread, 600 examples of 28×28, batches of 64, one epoch a turn, processor time; the module is that of
contestants/own_module.py, which no fast path knows.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import nn

from fedcrab.simulate.engines.plain import LocalTraining, PlainEngine, Task
from fedcrab.simulate.models import read, tensors

sys.path.insert(0, str(Path(__file__).parent / "contestants"))
from own_module import own

EXAMPLES, BATCH, RATE = 600, 64, 0.005


def bare_loop(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """What one writes without any framework."""
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    for rows in torch.randperm(EXAMPLES).split(BATCH):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
        optimiser.step()


def seconds(work: Callable[[], None]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=40)
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    module, x, y = own(), torch.rand(EXAMPLES, 1, 28, 28), torch.randint(10, (EXAMPLES,))
    start = read(list(tensors(module).values()))
    engine = PlainEngine(copy.deepcopy(module), LocalTraining(learning_rate=RATE, batch=BATCH), seed=0)
    task = Task("0", x, y, torch.empty(len(start)))
    found: dict[str, list[float]] = {"bare": [], "fedcrab": []}
    for _ in range(turns):
        found["bare"].append(seconds(lambda: bare_loop(module, x, y)))
        found["fedcrab"].append(seconds(lambda: engine.train(start, [task], round=0, epochs=1)))
    for name, spent in found.items():
        best, middle = EXAMPLES / min(spent[1:]), EXAMPLES / median(spent[1:])
        print(f"{name:8} {middle:8,.0f} samples a core second (best {best:,.0f})")
    print(f"fedcrab is {median(found['bare']) / median(found['fedcrab']):.2f} x")


if __name__ == "__main__":
    main()
