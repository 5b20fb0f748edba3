"""The gradients of the CNN, computed in four ways: a bare torch loop, channels_last, spectra, compiled code.

usage: python benchmarks/cnn.py [--turns N]

One process, one thread; the ways take turns. The table shows milliseconds of processor time per batch
(medians), and how many times faster compiled code is (medians of the ratios per turn). Its time includes a
descent by 0. FEDCRAB_NATIVE chooses the level of the processor.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from fedcrab import native
from fedcrab.simulate.engines.cnn import ChannelsLast, batch_last, rewritten
from fedcrab.simulate.engines.cnn_compiled import compiled
from fedcrab.simulate.engines.plain import LocalTraining, Task
from fedcrab.simulate.models import Architecture, read, write

SHAPES = {"digits": (1, 8, 8), "MNIST": (1, 28, 28), "CIFAR-10": (3, 32, 32)}
BATCHES = (16, 32, 64, 128)
Gradients = Callable[[torch.Tensor, torch.Tensor], object]


def ways(shape: tuple[int, ...]) -> dict[str, Gradients]:
    """What is compared, all with the same weights."""
    module = Architecture("cnn", shape, 10).build()
    network = rewritten(module)
    assert network is not None
    spectral = batch_last(network, shape)
    assert spectral is not None
    write(spectral.as_torch, read(list(module.parameters())))

    def bare(x: torch.Tensor, y: torch.Tensor) -> object:
        return torch.autograd.grad(nn.functional.cross_entropy(module(x), y), list(module.parameters()))

    library = native.library()
    assert library is not None, "there are no compiled kernels: run hatch_build.py"
    in_c = compiled(library, network, shape)
    assert in_c is not None
    write(in_c.as_torch, read(list(module.parameters())))

    def step(x: torch.Tensor, y: torch.Tensor) -> object:
        task = Task("0", x, y, torch.empty(0))
        return in_c.epoch(task, torch.arange(len(y)), LocalTraining(learning_rate=0, batch=len(y)), None)

    return {
        "bare": bare,
        "channels_last": ChannelsLast(network).gradients,
        "spectral": spectral.gradients,
        "compiled": step,
    }


def spent(gradients: Gradients, x: torch.Tensor, y: torch.Tensor) -> float:
    begun = time.process_time()
    gradients(x, y)
    return 1000 * (time.process_time() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=100)
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    columns = (
        "bare, ms | channels_last, ms | spectral, ms | compiled, ms | × bare | × channels_last | × spectral"
    )
    print(f"| images | batch | {columns} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, shape in SHAPES.items():
        compared = ways(shape)
        for batch in BATCHES:
            x, y = torch.rand(batch, *shape), torch.randint(10, (batch,))
            rounds = [[spent(way, x, y) for way in compared.values()] for _ in range(turns + 3)][3:]
            middle = " | ".join(f"{median(each):.2f}" for each in zip(*rounds, strict=True))
            faster = " | ".join(f"{median(r[way] / r[3] for r in rounds):.2f}" for way in (0, 1, 2))
            print(f"| {name} | {batch} | {middle} | {faster} |", flush=True)


if __name__ == "__main__":
    main()
