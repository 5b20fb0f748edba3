"""Models by name: logits of the right shape, flat vectors there and back."""

import numpy as np
import pytest
import torch
from torch import nn

from fedcrab.errors import ConfigError
from fedcrab.simulate.models import (
    ARCHITECTURES,
    Architecture,
    initial_model,
    layout_of,
    read,
    tensors,
    write,
)

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32)]
CASES = [(name, shape) for name in ARCHITECTURES for shape in SHAPES]


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_logits(name, shape):
    module = Architecture(name, shape, 7).build()
    assert module(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_a_vector_written_is_the_vector_read(name, shape):
    module = Architecture(name, shape, 7).build()
    layout, parts = layout_of(module), list(tensors(module).values())
    vector = torch.randint(-9, 9, (layout.size,)).float()
    write(parts, vector)
    assert torch.equal(read(parts), vector)
    assert layout.trained() == (slice(0, sum(p.numel() for p in module.parameters())),)


def test_the_mlp_of_mnist_is_784_128_10():
    assert layout_of(Architecture("mlp", (1, 28, 28), 10).build()).size == 785 * 128 + 129 * 10


def test_buffers_are_not_trained_and_counters_are_integers():
    layout = layout_of(Architecture("resnet", (1, 8, 8), 10).build())
    kinds = {f.name.rsplit(".", 1)[-1]: (f.trained, f.integer) for f in layout.fields}
    assert kinds["running_mean"] == (False, False)
    assert kinds["num_batches_tracked"] == (False, True)
    assert kinds["weight"] == (True, False)


def test_what_is_frozen_is_no_part_of_the_vector():
    module = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 2), nn.BatchNorm1d(2))
    module[2].weight.requires_grad_(False)
    names = ["1.weight", "1.bias", "2.bias", "2.running_mean", "2.running_var", "2.num_batches_tracked"]
    assert [f.name for f in layout_of(module).fields] == names


def test_other_number_types_are_refused():
    with pytest.raises(ConfigError, match=r"float64; a model's parameters must be float32"):
        layout_of(nn.Linear(2, 2).double())


def test_the_start_is_seeded_and_leaves_the_global_generator_alone():
    architecture = Architecture("cnn", (1, 28, 28), 10)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = initial_model(architecture, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.dtype == np.float32
    assert np.array_equal(first, initial_model(architecture, seed=1))
    assert not np.array_equal(first, initial_model(architecture, seed=2))


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("cnnn", (1, 28, 28), "there are softmax, mlp, cnn, resnet, or give your own"),
        ("cnn", (20,), "use softmax or mlp"),
        ("resnet", (1, 4, 4), "8 x 8 or more"),
        ("no.such:thing", (1, 8, 8), "cannot be imported"),
        ("math:nothing", (1, 8, 8), "cannot be imported"),
        ("math:pi", (1, 8, 8), "not a function"),
        ("builtins:zip", (1, 8, 8), "cannot be built for shape|not a torch"),
    ],
)
def test_what_is_no_model_is_refused(name, shape, says):
    with pytest.raises(ConfigError, match=says):
        Architecture(name, shape, 10).build()


def test_a_vector_of_another_length_is_refused():
    module = Architecture("softmax", (3,), 2).build()
    with pytest.raises(ConfigError, match=r"has 8 numbers, got a vector of shape \(7,\)"):
        write(list(tensors(module).values()), torch.zeros(7))
