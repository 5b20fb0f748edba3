"""Every layer against torch's own and autograd: the output, and the gradients of input and weights."""

import pytest
import torch
from torch import nn

from fedcrab.simulate.engines.cnn_layers import Bias, Dense, Pool, Relu, UnfoldedConvolution
from fedcrab.simulate.engines.fourier import FourierConvolution

BATCH = 5


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def batch_last(x):
    return x.permute(2, 3, 1, 0).contiguous()


def as_torch(x):
    return x.permute(3, 2, 0, 1)


def load(layer, *weights):
    for place, weight in zip(layer.as_torch, weights, strict=True):
        place.copy_(weight.detach().view(place.shape))


def in_torchs_order(layer, gradients):
    """Gradients as torch has them: laid out as the weights are, so by the same permutation."""
    return [
        gradient.as_strided(view.shape, view.stride())
        for gradient, view in zip(gradients, layer.as_torch, strict=True)
    ]


def expected_of(function, x, *weights):
    """Output, a gradient for it, and by autograd those of input and weights."""
    x = x.clone().requires_grad_()
    y = function(x)
    gradient = torch.randn_like(y)
    return y.detach(), gradient, torch.autograd.grad(y, [x, *weights], gradient)


def close(got, expected):
    return (got.reshape(-1) - expected.reshape(-1)).abs().max() < 1e-5 * (1 + expected.abs().max())


CONVOLUTIONS = [  # channels, outputs, kernel, padding, height, width
    (1, 4, 5, 0, 12, 12),
    (3, 2, 3, 1, 7, 8),
    (2, 5, (3, 5), (2, 1), 9, 6),
    (16, 32, 5, 0, 12, 12),
    (4, 4, 5, 2, 4, 4),
    (2, 3, 1, 0, 3, 5),
    (2, 3, 3, 0, 3, 3),
]


def convolved(kind, case):
    """The layer with torch's weights, images, and what is expected of them."""
    channels, outputs, kernel, padding, height, width = case
    torchs = nn.Conv2d(channels, outputs, kernel, padding=padding, bias=False)
    x = torch.randn(BATCH, channels, height, width)
    layer = kind(torchs, (height, width, channels))
    load(layer, torchs.weight)
    return layer, x, *expected_of(torchs, x, torchs.weight)


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_spectral(case):
    layer, x, y, gradient, (of_x, of_weight) = convolved(FourierConvolution, case)
    got = layer.forward(batch_last(x))
    assert tuple(got.shape[:3]) == layer.shape
    assert close(as_torch(got), y)
    before, gradients = layer.backward(batch_last(gradient))
    assert close(as_torch(before), of_x)
    assert close(in_torchs_order(layer, gradients)[0], of_weight)


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_unfolded(case):
    layer, x, y, gradient, (_, of_weight) = convolved(UnfoldedConvolution, case)
    got = layer.forward(x)
    assert tuple(got.shape[:3]) == layer.shape
    assert close(as_torch(got), y)
    gradients = layer.backward(batch_last(gradient))
    assert close(in_torchs_order(layer, gradients)[0], of_weight)


def laid_out_otherwise(x):
    """As the first convolution gives it: rows, channels, columns, batch in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize("lay", [lambda x: x, laid_out_otherwise], ids=["plain", "otherwise"])
@pytest.mark.parametrize("size", [(2, 2), (4, 6), (5, 7), (3, 2)], ids=str)
def test_pool_with_many_equal_pixels(size, lay):
    """Whole numbers from 0 to 2: most windows have several largest, of which the first counts."""
    x = torch.randint(0, 3, (BATCH, 3, *size)).float()
    y, gradient, (of_x,) = expected_of(nn.MaxPool2d(2), x)
    layer = Pool((*size, 3))
    got = layer.forward(lay(batch_last(x)))
    assert got.is_contiguous()
    assert torch.equal(as_torch(got), y)
    before, gradients = layer.backward(batch_last(gradient))
    assert torch.equal(as_torch(before), of_x)
    assert gradients == []


def test_bias():
    x, bias = torch.randn(BATCH, 3, 4, 6), torch.randn(3, requires_grad=True)
    y, gradient, (of_x, of_bias) = expected_of(lambda x: x + bias[:, None, None], x, bias)
    layer = Bias(3)
    load(layer, bias)
    assert torch.equal(as_torch(layer.forward(batch_last(x))), y)
    before, gradients = layer.backward(batch_last(gradient))
    assert torch.equal(as_torch(before), of_x)
    assert close(gradients[0], of_bias)


def test_relu_has_no_slope_at_zero():
    x = torch.randint(-1, 2, (BATCH, 3, 4, 6)).float()
    y, gradient, (of_x,) = expected_of(nn.ReLU(), x)
    layer = Relu()
    assert torch.equal(as_torch(layer.forward(batch_last(x))), y)
    before, gradients = layer.backward(batch_last(gradient))
    assert torch.equal(as_torch(before), of_x)
    assert gradients == []


@pytest.mark.parametrize("bias", [True, False])
def test_dense_on_images(bias):
    linear = nn.Linear(3 * 2 * 4, 7, bias=bias)
    x = torch.randn(BATCH, 3, 2, 4)
    y, gradient, (of_x, *of_weights) = expected_of(lambda x: linear(x.flatten(1)), x, *linear.parameters())
    layer = Dense(linear, (2, 4, 3))
    load(layer, *linear.parameters())
    assert close(layer.forward(batch_last(x)).t(), y)
    before, gradients = layer.backward(gradient.t().contiguous())
    assert close(as_torch(before), of_x)
    got = in_torchs_order(layer, gradients)
    assert len(got) == len(of_weights) == 1 + bias
    assert all(close(g, e) for g, e in zip(got, of_weights, strict=True))


def test_dense_on_features():
    linear = nn.Linear(6, 4)
    x = torch.randn(BATCH, 6)
    y, gradient, (of_x, *of_weights) = expected_of(linear, x, *linear.parameters())
    layer = Dense(linear, (1, 1, 6))
    load(layer, *linear.parameters())
    assert close(layer.forward(x.t().contiguous()).t(), y)
    before, gradients = layer.backward(gradient.t().contiguous())
    assert close(before.t(), of_x)
    assert all(close(g, e) for g, e in zip(in_torchs_order(layer, gradients), of_weights, strict=True))
