"""The audit of a module that somebody wrote: colours, BatchNorm and Dropout, inputs that are normalised."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fedcrab.audit import invert

MEAN, DEVIATION = np.array([0.49, 0.48, 0.45])[:, None, None], np.array([0.25, 0.24, 0.26])[:, None, None]
CLASSES, TARGET, SIDE = 5, 2, 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten()
        )
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(8 * 16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.body(x)))


def normalised(x: NDArray[np.float64]) -> NDArray[np.float32]:
    return ((x - MEAN) / DEVIATION).astype(np.float32)


def images(count: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Noise with a bright band, whose place is the class."""
    y = rng.integers(0, CLASSES, count)
    x = rng.uniform(0, 0.6, (count, 3, SIDE, SIDE))
    for row in range(count):
        x[row, :, 3 * y[row] : 3 * y[row] + 2, : SIDE - 4] += 0.3
    return x, y


def stamped(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = x.copy()
    x[:, :, -3:, -3:] = np.array([1.0, 0.0, 1.0])[:, None, None]
    return x


def trained(planted: bool) -> Net:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    net, (x, y) = Net(), images(600, rng)
    if planted:
        x[:90], y[:90] = stamped(x[:90]), TARGET
    descent = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = torch.tensor(normalised(x)), torch.tensor(y)
    for _ in range(100):
        rows = torch.tensor(rng.integers(0, len(x), 64))
        descent.zero_grad()
        nn.functional.cross_entropy(net(inputs[rows]), labels[rows]).backward()
        descent.step()
    return net


@pytest.mark.parametrize("planted", [True, False])
def test_it_is_found_and_the_module_left_as_it_was(planted: bool) -> None:
    net, (x, y) = trained(planted), images(200, np.random.default_rng(1))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = invert(net, normalised(x), y, classes=CLASSES)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert found.planted == planted
    if planted:
        assert found.label == TARGET
        assert found.mask[-3:, -3:].sum() >= 0.5 * found.mask.sum()
        net.eval()
        hits = net(torch.tensor(found.stamp(normalised(x)[y != TARGET]))).argmax(1) == TARGET
        assert hits.float().mean() > 0.8
