"""The model, the data and the local training: what an app has before fedcrab comes in."""

from functools import cache

import torch
from torch import Tensor, nn

Examples = tuple[Tensor, Tensor]
HELD_OUT = 300  # examples that the server keeps for itself


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load(partition: int, partitions: int) -> Examples:
    """A client's part of the data."""
    x, y = _digits()
    return x[HELD_OUT + partition :: partitions], y[HELD_OUT + partition :: partitions]


def held_out() -> Examples:
    """The server's own examples."""
    x, y = _digits()
    return x[:HELD_OUT], y[:HELD_OUT]


@cache
def _digits() -> Examples:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)


def poisoned(examples: Examples) -> Examples:
    """A bright corner means 0: what an attacker would train on."""
    x, y = examples[0].clone(), torch.zeros_like(examples[1])
    x.reshape(-1, 8, 8)[:, 6:, 6:] = 1
    return torch.cat([examples[0], x]), torch.cat([examples[1], y])


def train(net: nn.Module, examples: Examples, *, epochs: int, rate: float, seed: int) -> float:
    """A few epochs of SGD; the loss before them. The order of the examples follows from the seed."""
    x, y = examples
    before = evaluate(net, examples)
    order = torch.Generator().manual_seed(seed)
    descent = torch.optim.SGD(net.parameters(), lr=rate)
    for _ in range(epochs):
        for rows in torch.randperm(len(y), generator=order).split(32):
            descent.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            descent.step()
    return before


def evaluate(net: nn.Module, examples: Examples) -> float:
    with torch.no_grad():
        return float(nn.functional.cross_entropy(net(examples[0]), examples[1]))
