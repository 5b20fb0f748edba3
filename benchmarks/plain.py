"""Models without a fast path, in the plain loop, compared with a bare torch loop, in turns in one process.

usage: python benchmarks/plain.py [--turns N] [MODEL ...]

One thread, batches of 64, one epoch per turn, processor time. The models: `own`, a user's own module
(contestants/own_module.py); `resnet`, with channels innermost in memory; a small transformer; and the same
transformer with frozen weights and trained low-rank adapters (`lora`).
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import torch
from torch import nn

from fedcrab.simulate.engines import engine_for
from fedcrab.simulate.engines.plain import LocalTraining, Task
from fedcrab.simulate.models import Architecture, read, tensors

sys.path.insert(0, str(Path(__file__).parent / "contestants"))
from own_module import lora, own, transformer

BATCH, RATE = 64, 0.005
SHAPES = {"own": (1, 28, 28), "resnet": (3, 32, 32), "transformer": (16, 49), "lora": (16, 49)}
EXAMPLES = {"own": 600, "resnet": 192, "transformer": 300, "lora": 300}


def made(name: str) -> nn.Module:
    """The module of this name."""
    torch.manual_seed(0)
    if name == "resnet":
        return Architecture(name, SHAPES[name], 10).build()
    return {"own": own, "transformer": transformer, "lora": lora}[name](SHAPES[name], 10)


def bare_loop(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Train with a plain torch loop, without any framework."""
    trained = [p for p in module.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=RATE)
    for rows in torch.randperm(len(y)).split(BATCH):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
        optimiser.step()


def seconds(work: Callable[[], None]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def compete(name: str, turns: int) -> str:
    """Return one line of the table."""
    module, count = made(name), EXAMPLES[name]
    x, y = torch.rand(count, *SHAPES[name]), torch.randint(10, (count,))
    start = read(list(tensors(module).values()))
    local = LocalTraining(learning_rate=RATE, batch=BATCH)
    engine = engine_for(copy.deepcopy(module), local, seed=0, shape=SHAPES[name])
    task = Task("0", x, y, torch.empty(len(start)))
    found = []
    for _ in range(turns + 1):
        bare = seconds(lambda: bare_loop(module, x, y))
        found.append((bare, seconds(lambda: engine.train(start, [task], round=0, epochs=1))))
    bare, ours = (count / median(spent) for spent in zip(*found[1:], strict=True))
    low, middle, high = quantiles([b / o for b, o in found[1:]], n=4, method="inclusive")
    every = sum(p.numel() for p in module.parameters())
    return (
        f"| {name} | {every:,} | {len(start):,} | {bare:,.0f} | {ours:,.0f} "
        f"| {middle:.2f}× ({low:.2f} to {high:.2f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(SHAPES), metavar="MODEL")
    parser.add_argument("--turns", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| model | parameters | in the vector | bare loop, samples per core second | fedcrab | fedcrab is |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    for name in options.models:
        print(compete(name, options.turns), flush=True)


if __name__ == "__main__":
    main()
