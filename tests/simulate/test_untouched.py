"""Layers that look like torch's own and are not are left to the plain loop, which takes them as they are."""

import pytest
import torch
from torch import nn

from fedcrab.simulate.engines import engine_for, one_thread
from fedcrab.simulate.engines.plain import LocalTraining, PlainEngine, Task
from fedcrab.simulate.models import read, tensors

SHAPE = (1, 12, 12)
HOOKS = {
    "forward": lambda layer: layer.register_forward_hook(lambda _, __, output: 2 * output),
    "before forward": lambda layer: layer.register_forward_pre_hook(lambda _, inputs: (2 * inputs[0],)),
    "backward": lambda layer: layer.register_full_backward_hook(lambda *_: None),
    "before backward": lambda layer: layer.register_full_backward_pre_hook(lambda *_: None),
    "of a weight": lambda layer: layer.weight.register_hook(lambda gradient: 2 * gradient),
}


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 144), nn.ReLU(), nn.Linear(144, 3))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.ReLU(), nn.Conv2d(8, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3)
    )


BUILDS = [mlp, cnn]


def first_layer(module):
    return next(step for step in module if isinstance(step, nn.Linear | nn.Conv2d))


def engine_of(module):
    return engine_for(module, LocalTraining(learning_rate=0.1), seed=0, shape=SHAPE)


def batch():
    draw = torch.Generator().manual_seed(0)
    return torch.rand(20, *SHAPE, generator=draw), torch.randint(3, (20,), generator=draw)


def step_of(engine, module):
    """The change by one round of a client with one batch."""
    start = read(list(tensors(module).values()))
    x, y = batch()
    task = Task("0", x, y, torch.empty(len(start)))
    with one_thread():
        engine.train(start, [task], round=0, epochs=1)
    return task.update


@pytest.mark.parametrize("build", BUILDS)
def test_what_is_as_torch_makes_it_is_fast(build):
    assert not isinstance(engine_of(build()), PlainEngine)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook(build, hook):
    module = build()
    HOOKS[hook](first_layer(module))
    assert isinstance(engine_of(module), PlainEngine)


@pytest.mark.parametrize("build", BUILDS)
def test_a_hook_on_the_whole(build):
    module = build()
    module.register_forward_hook(lambda _, __, output: 2 * output)
    assert isinstance(engine_of(module), PlainEngine)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("normalised", [nn.utils.weight_norm, nn.utils.spectral_norm])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_older_normalisations(build, normalised):
    """They are hooks, and the layer keeps its type; one step is that of autograd."""

    def made():
        torch.manual_seed(0)
        module = build()
        normalised(first_layer(module))
        return module

    module, other, (x, y) = made(), made(), batch()
    engine = engine_of(module)
    assert isinstance(engine, PlainEngine)
    loss = nn.functional.cross_entropy(other(x), y)
    expected = -0.1 * read(torch.autograd.grad(loss, list(other.parameters())))
    assert (step_of(engine, module)[: len(expected)] - expected).abs().max() < 1e-6


@pytest.mark.parametrize("build", BUILDS)
def test_another_function_in_place_of_a_layers_own(build):
    module = build()
    first_layer(module).forward = lambda x: torch.zeros(len(x), 144)
    assert isinstance(engine_of(module), PlainEngine)


def test_a_sequence_that_computes_something_else():
    class Doubled(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    assert isinstance(engine_of(Doubled(*mlp())), PlainEngine)
    assert isinstance(engine_of(Doubled(*cnn())), PlainEngine)


def test_one_layer_at_two_places():
    square = nn.Linear(144, 144)
    module = nn.Sequential(nn.Flatten(), square, nn.ReLU(), square, nn.ReLU(), nn.Linear(144, 3))
    engine = engine_of(module)
    assert isinstance(engine, PlainEngine)
    assert len(step_of(engine, module)) == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("build", BUILDS)
def test_numbers_of_the_users_own(build):
    buffered, scaled = build(), build()
    first_layer(buffered).register_buffer("seen", torch.zeros(2))
    first_layer(scaled).scale = nn.Parameter(torch.ones(1))
    assert isinstance(engine_of(buffered), PlainEngine)
    assert isinstance(engine_of(scaled), PlainEngine)
