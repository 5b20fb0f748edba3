"""The gradients of the CNN, computed in three ways: a bare torch loop, channels_last, and spectra.

usage: python benchmarks/cnn.py [--turns N]

One process, one thread; the ways take turns. The table shows milliseconds of processor time per batch
(medians), and how many times faster the spectra are (medians of the ratios per turn).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from fedcrab.simulate.engines.cnn import ChannelsLast, batch_last, rewritten
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

    return {"bare": bare, "channels_last": ChannelsLast(network).gradients, "spectral": spectral.gradients}


def spent(gradients: Gradients, x: torch.Tensor, y: torch.Tensor) -> float:
    begun = time.process_time()
    gradients(x, y)
    return 1000 * (time.process_time() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=100)
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    print("| images | batch | bare, ms | channels_last, ms | spectral, ms | × bare | × channels_last |")
    print("|---|---|---|---|---|---|---|")
    for name, shape in SHAPES.items():
        compared = ways(shape)
        for batch in BATCHES:
            x, y = torch.rand(batch, *shape), torch.randint(10, (batch,))
            rounds = [[spent(way, x, y) for way in compared.values()] for _ in range(turns + 3)][3:]
            middle = " | ".join(f"{median(each):.2f}" for each in zip(*rounds, strict=True))
            faster = " | ".join(f"{median(r[way] / r[2] for r in rounds):.2f}" for way in (0, 1))
            print(f"| {name} | {batch} | {middle} | {faster} |", flush=True)


if __name__ == "__main__":
    main()
