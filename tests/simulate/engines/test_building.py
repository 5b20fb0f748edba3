"""Whole networks against autograd, and which are left to other engines."""

import pytest
import torch
from torch import nn

from fedcrab.simulate.engines.cnn import BatchLast, batch_last, rewritten
from fedcrab.simulate.models import Architecture

SHAPE = (1, 16, 16)


def convolution(*sizes, **settings):
    return nn.Conv2d(*sizes, 5, **settings)


def sequence(*steps, shape=SHAPE, classes=3, hidden=()):
    """Steps, flattening, and linear layers with ReLU between."""
    body = nn.Sequential(*steps, nn.Flatten())
    with torch.no_grad():
        features = body(torch.zeros(2, *shape)).shape[1]
    for width in hidden:
        body.append(nn.Linear(features, width)).append(nn.ReLU())
        features = width
    return body.append(nn.Linear(features, classes))


NETWORKS = {
    "as they come": lambda: sequence(
        convolution(1, 6), nn.ReLU(), nn.MaxPool2d(2), convolution(6, 16), nn.ReLU()
    ),
    "pooled before ReLU": lambda: sequence(
        convolution(1, 6), nn.MaxPool2d(2), nn.ReLU(), convolution(6, 16), nn.ReLU()
    ),
    "never pooled": lambda: sequence(convolution(1, 6), nn.ReLU(), convolution(6, 16), nn.ReLU()),
    "no ReLU": lambda: sequence(convolution(1, 6), nn.MaxPool2d(2), convolution(6, 16)),
    "no bias": lambda: sequence(
        convolution(1, 6, bias=False), nn.ReLU(), nn.MaxPool2d(2), convolution(6, 16, bias=False), nn.ReLU()
    ),
    "padded": lambda: sequence(
        convolution(1, 6, padding=2),
        nn.ReLU(),
        nn.MaxPool2d((2, 2)),
        convolution(6, 16, padding=(1, 2)),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ),
    "three": lambda: sequence(
        convolution(1, 12, padding=2),
        nn.ReLU(),
        convolution(12, 12),
        nn.ReLU(),
        nn.MaxPool2d(2),
        convolution(12, 14, padding=2),
        nn.ReLU(),
    ),
    "odd sizes": lambda: sequence(
        convolution(1, 6, padding=(1, 0)), nn.ReLU(), nn.MaxPool2d(2), convolution(6, 16, padding=1)
    ),
    "hidden layers": lambda: sequence(
        convolution(1, 6), nn.ReLU(), nn.MaxPool2d(2), convolution(6, 16), nn.ReLU(), hidden=(12, 9)
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_equal_to_autograd(name):
    torch.manual_seed(0)
    module = NETWORKS[name]()
    network = batch_last(rewritten(module), SHAPE)
    assert isinstance(network, BatchLast)
    for place, weight in zip(network.as_torch, module.parameters(), strict=True):
        place.copy_(weight.detach().view(place.shape))
    for n in (16, 1, 7):
        x, y = torch.randn(n, *SHAPE), torch.randint(0, 3, (n,))
        loss = nn.functional.cross_entropy(module(x), y)
        expected = torch.autograd.grad(loss, list(module.parameters()))
        got = network.gradients(x, y)
        for gradient, view, wanted in zip(got, network.as_torch, expected, strict=True):
            in_order = gradient.as_strided(view.shape, view.stride()).reshape(wanted.shape)
            assert (in_order - wanted).abs().max() < 1e-6 * (1 + wanted.abs().max())


def test_the_cnns_of_the_presets():
    for shape in [(1, 28, 28), (3, 32, 32), (1, 8, 8)]:
        assert batch_last(rewritten(Architecture("cnn", shape, 10).build()), shape) is not None


DECLINED = {
    "one convolution": lambda: sequence(convolution(1, 6), nn.ReLU()),
    "a stride": lambda: sequence(convolution(1, 6, stride=2), nn.ReLU(), convolution(6, 16)),
    "groups": lambda: sequence(convolution(1, 6), nn.ReLU(), convolution(6, 16, groups=2)),
    "dilated": lambda: sequence(convolution(1, 6), nn.ReLU(), convolution(6, 16, dilation=2)),
    "padded by a name": lambda: sequence(
        convolution(1, 6), nn.ReLU(), convolution(6, 16, padding="same"), nn.ReLU()
    ),
    "padded by reflection": lambda: sequence(
        convolution(1, 6), nn.ReLU(), convolution(6, 16, padding=2, padding_mode="reflect")
    ),
    "pooled by three": lambda: sequence(convolution(1, 6), nn.MaxPool2d(3), convolution(6, 16, padding=2)),
    "pools that overlap": lambda: sequence(
        convolution(1, 6), nn.MaxPool2d(2, stride=1), convolution(6, 16, padding=2)
    ),
    "pools with ceilings": lambda: sequence(
        convolution(1, 6), nn.MaxPool2d(2, ceil_mode=True), convolution(6, 16, padding=2)
    ),
    "pooled twice": lambda: sequence(
        convolution(1, 6), nn.MaxPool2d(2), nn.MaxPool2d(2), convolution(6, 16, padding=2)
    ),
    "small kernels": lambda: sequence(nn.Conv2d(1, 6, 1), nn.ReLU(), nn.Conv2d(6, 16, 1), nn.ReLU()),
    "linear layers side by side": lambda: sequence(
        convolution(1, 6), nn.ReLU(), convolution(6, 16), nn.ReLU()
    ).append(nn.Linear(3, 3)),
}


@pytest.mark.parametrize("name", DECLINED)
def test_declined(name):
    assert batch_last(rewritten(DECLINED[name]()), SHAPE) is None


@pytest.mark.parametrize("shape", [(), (256,), (3, 16, 16), (1, 17, 22), (1, 2, 2)], ids=str)
def test_examples_of_another_shape_are_left_to_the_module(shape):
    module = NETWORKS["as they come"]()
    assert batch_last(rewritten(module), SHAPE) is not None
    assert batch_last(rewritten(module), shape) is None
