"""Every engine against a bare torch loop, step by step, and against itself in other company."""

import numpy as np
import pytest
import torch
from torch import nn

from fedcrab import native
from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.simulate import engines
from fedcrab.simulate.engines import engine_for, one_thread
from fedcrab.simulate.engines.cnn import BatchLast, ChannelsLast, CnnEngine, rewritten, takes_channels_last
from fedcrab.simulate.engines.cnn_compiled import CompiledCnnEngine
from fedcrab.simulate.engines.mlp import MlpEngine, equal_batches
from fedcrab.simulate.engines.mlp_compiled import CompiledMlpEngine
from fedcrab.simulate.engines.plain import LocalTraining, PlainEngine, Task
from fedcrab.simulate.models import Architecture, initial_model, layout_of, read, tensors, write

SEED, ROUND = 7, 2
CASES = {
    "softmax": (Architecture("softmax", (13,), 3), [1, 3, 64, 65, 130, 64, 7], MlpEngine),
    "mlp": (Architecture("mlp", (1, 8, 8), 10), [5, 70, 71, 200, 70], MlpEngine),
    "mlp of mnist": (Architecture("mlp", (1, 28, 28), 10), [70] * 6, MlpEngine),
    "mlp with much and little": (
        Architecture("mlp", (1, 28, 28), 10),
        [300, 5, 131, 64, 130, 900],
        MlpEngine,
    ),
    "cnn 8": (Architecture("cnn", (1, 8, 8), 10), [70, 3, 64], CnnEngine),
    "cnn 28": (Architecture("cnn", (1, 28, 28), 10), [70, 3], CnnEngine),
    "cnn 32": (Architecture("cnn", (3, 32, 32), 10), [70, 3], CnnEngine),
    "resnet": (
        Architecture("resnet", (1, 8, 8), 10),
        [20, 30],
        PlainEngine,
    ),  # more: some output of a ReLU is 0 up to rounding
}
SETTINGS = [
    {},
    {"momentum": 0.9},
    {"weight_decay": 0.01},
    {"momentum": 0.9, "weight_decay": 0.01, "batch": 10},
]


COMPILED = {MlpEngine: CompiledMlpEngine, CnnEngine: CompiledCnnEngine}
WITH, WITHOUT = "with kernels", "without kernels"


def laws():
    """Yield every case with every setting, and again if it has compiled kernels."""
    for case, (_, _, kind) in CASES.items():
        for settings in SETTINGS:
            yield case, settings, WITHOUT
            if kind is CnnEngine or (kind is MlpEngine and not settings):
                yield case, settings, WITH


LAWS = list(laws())


@pytest.fixture(autouse=True)
def single():
    with one_thread():
        yield


@pytest.fixture(params=[WITHOUT, WITH])
def kernels(request, monkeypatch):
    """Whether the compiled kernels are used."""
    if request.param == WITHOUT:
        monkeypatch.setattr(engines, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("the package was built without a C compiler")
    return request.param == WITH


def tasks_for(architecture, sizes):
    draw = torch.Generator().manual_seed(1)
    size = layout_of(architecture.build()).size
    return [
        Task(
            str(client),
            torch.rand(n, *architecture.shape, generator=draw),
            torch.randint(0, architecture.classes, (n,), generator=draw),
            torch.empty(size),
        )
        for client, n in enumerate(sizes)
    ]


def bare_loop(architecture, local, start, task, epochs):
    """What anybody would write."""
    module = architecture.build()
    write(list(tensors(module).values()), start)
    optimiser = torch.optim.SGD(
        module.parameters(), local.learning_rate, local.momentum, weight_decay=local.weight_decay
    )
    rng = rng_for(SEED, "batches", ROUND, task.client)
    for _ in range(epochs):
        order = rng.permutation(len(task.y))
        for begin in range(0, len(order), local.batch):
            rows = order[begin : begin + local.batch]
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(task.x[rows]), task.y[rows]).backward()
            optimiser.step()
    return read(list(tensors(module).values())) - start


def train(engine, start, tasks, epochs=2):
    engine.train(start, tasks, round=ROUND, epochs=epochs)
    return torch.stack([task.update for task in tasks])


@pytest.mark.parametrize(("case", "settings", "kernels"), LAWS, indirect=["kernels"], ids=str)
def test_equal_to_a_bare_loop(case, settings, kernels):
    architecture, sizes, kind = CASES[case]
    if kernels:
        kind = COMPILED[kind]
    local = LocalTraining(learning_rate=0.05, **settings)
    start = torch.from_numpy(initial_model(architecture, seed=3))
    engine = engine_for(architecture.build(), local, seed=SEED, shape=architecture.shape)
    assert type(engine) is kind
    tasks = tasks_for(architecture, sizes)
    for epochs in (1, 2):
        got = train(engine, start, tasks, epochs)
        expected = torch.stack([bare_loop(architecture, local, start, task, epochs) for task in tasks])
        assert (got - expected).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("name", "batch", "plain_sgd"),
    [
        *(("softmax", 8, True), ("mlp", 8, True)),
        *(("softmax", 8, False), ("mlp", 8, False), ("cnn", 8, False), ("cnn", 16, False)),
    ],
)
def test_equal_after_every_single_step(name, batch, plain_sgd, kernels):
    """One more batch each time: the engines agree after 1, 2, 3, ... steps."""
    architecture = Architecture(name, (1, 28, 28) if name == "cnn" else (1, 8, 8), 10)
    settings = {} if plain_sgd else {"momentum": 0.5, "weight_decay": 0.001}
    local = LocalTraining(learning_rate=0.1, batch=batch, **settings)
    start = torch.from_numpy(initial_model(architecture, seed=3))
    engine = engine_for(architecture.build(), local, seed=SEED, shape=architecture.shape)
    for count in range(batch, 9 * batch, batch):
        (task,) = tasks_for(architecture, [count])
        got = train(engine, start, [task], 1)[0]
        assert (got - bare_loop(architecture, local, start, task, 1)).abs().max() < 1e-6


@pytest.mark.parametrize(("case", "settings", "kernels"), LAWS, indirect=["kernels"], ids=str)
def test_a_client_has_the_same_bits_in_any_company(case, settings, kernels):
    architecture, sizes, _ = CASES[case]
    start = torch.from_numpy(initial_model(architecture, seed=3))
    engine = engine_for(architecture.build(), LocalTraining(**settings), seed=SEED, shape=architecture.shape)
    tasks = tasks_for(architecture, sizes)
    together = train(engine, start, tasks)
    alone = torch.cat([train(engine, start, [task]) for task in tasks_for(architecture, sizes)])
    backwards = train(engine, start, tasks_for(architecture, sizes)[::-1]).flip(0)
    some = train(engine, start, tasks_for(architecture, sizes)[1:])
    assert torch.equal(together, alone)
    assert torch.equal(together, backwards)
    assert torch.equal(together[1:], some)


def test_stacked_without_bias_and_with_several_hidden_layers(kernels):
    def build():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(5, 9, bias=False), nn.ReLU(), nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 3, bias=False)
        )

    local = LocalTraining(learning_rate=0.2, batch=8)
    start = read(list(build().parameters()))
    engine = engine_for(build(), local, seed=SEED)
    assert isinstance(engine, CompiledMlpEngine if kernels else MlpEngine)
    architecture = Architecture("softmax", (5,), 3)
    fast = [Task(t.client, t.x, t.y, torch.empty(len(start))) for t in tasks_for(architecture, [20, 33])]
    plain = [Task(t.client, t.x, t.y, torch.empty(len(start))) for t in fast]
    expected = train(PlainEngine(build(), local, seed=SEED), start, plain)
    assert (train(engine, start, fast) - expected).abs().max() < 1e-6


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 2)),
        nn.Linear(4, 2),
    ],
)
def test_fast_engines_decline_what_they_do_not_know(module):
    assert isinstance(engine_for(module, LocalTraining(), seed=0), PlainEngine)


def test_dropout_draws_by_address():
    module = nn.Sequential(nn.Linear(5, 50), nn.Dropout(0.5), nn.Linear(50, 3))
    start = read(list(module.parameters()))
    engine = PlainEngine(module, LocalTraining(learning_rate=0.1), seed=SEED)

    def updates(sizes):
        fresh = tasks_for(Architecture("softmax", (5,), 3), sizes)
        return [Task(t.client, t.x, t.y, torch.empty(len(start))) for t in fresh]

    together = train(engine, start, updates([20, 30]))
    alone = updates([20, 30])[1:]
    before = torch.get_rng_state()
    assert torch.equal(train(engine, start, alone)[0], together[1])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("batch", "examples", "kind"),
    [
        (64, 600, BatchLast),
        (64, 16, BatchLast),
        (64, 15, ChannelsLast),
        (16, 600, BatchLast),
        (15, 600, ChannelsLast),
    ],
)
def test_two_ways_to_compute_a_cnn_in_torch(batch, examples, kind, monkeypatch):
    monkeypatch.setattr(engines, "library", lambda: None)
    architecture = Architecture("cnn", (1, 28, 28), 10)
    local = LocalTraining(batch=batch)
    engine = engine_for(architecture.build(), local, seed=SEED, shape=architecture.shape)
    assert type(engine.network_for(examples)) is kind


def test_a_cnn_on_images_that_are_mostly_one_colour(kernels):
    """Of equal pixels in a pool the first counts, so such images tell which way gradients go."""
    architecture = Architecture("cnn", (1, 28, 28), 10)
    local = LocalTraining(learning_rate=0.05)
    start = torch.from_numpy(initial_model(architecture, seed=3))
    tasks = tasks_for(architecture, [130, 64])
    for task in tasks:
        task.x.mul_(task.x > 0.9).round_()
    engine = engine_for(architecture.build(), local, seed=SEED, shape=architecture.shape)
    expected = torch.stack([bare_loop(architecture, local, start, task, 2) for task in tasks])
    assert (train(engine, start, tasks) - expected).abs().max() < 1e-6


def test_pooling_before_relu_is_the_same_function():
    module = Architecture("cnn", (1, 28, 28), 10).build()
    fast = rewritten(module)
    assert [type(step).__name__ for step in fast][:3] == ["Conv2d", "MaxPool2d", "ReLU"]
    x = torch.randn(4, 1, 28, 28)
    assert (fast(x) - module(x)).abs().max() < 1e-6


def test_what_is_not_finite_comes_back_as_it_is(kernels):
    for name in ("mlp", "cnn"):
        architecture = Architecture(name, (1, 8, 8), 10)
        start = torch.from_numpy(initial_model(architecture, seed=0)).index_fill(
            0, torch.tensor(3), torch.nan
        )
        engine = engine_for(architecture.build(), LocalTraining(), seed=0, shape=architecture.shape)
        assert train(engine, start, tasks_for(architecture, [9])).isnan().any()


def test_a_batch_larger_than_all_examples_is_all_of_them(kernels):
    architecture = Architecture("mlp", (1, 8, 8), 10)
    start = torch.from_numpy(initial_model(architecture, seed=0))
    tasks = tasks_for(architecture, [9, 40])
    local = LocalTraining(batch=10**12)
    got = train(engine_for(architecture.build(), local, seed=SEED), start, tasks)
    expected = torch.stack([bare_loop(architecture, local, start, task, 2) for task in tasks])
    assert (got - expected).abs().max() < 1e-6


def test_no_epochs_is_no_change(kernels):
    architecture = Architecture("mlp", (1, 8, 8), 10)
    start = torch.from_numpy(initial_model(architecture, seed=0))
    engine = engine_for(architecture.build(), LocalTraining(), seed=0)
    assert torch.equal(train(engine, start, tasks_for(architecture, [9]), 0), torch.zeros(1, len(start)))


def test_neighbours_with_the_same_next_batch():
    assert list(equal_batches([130, 128, 64, 20, 20, 7, 0, -5], 64)) == [(0, 3, 64), (3, 5, 20), (5, 6, 7)]


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": -1},
        {"learning_rate": np.nan},
        {"batch": 0},
        {"epochs": -1},
        {"momentum": 1},
        {"weight_decay": -0.1},
    ],
    ids=str,
)
def test_settings_are_checked(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        LocalTraining(**settings)


def test_who_is_laid_out_with_channels_innermost():
    """Only what cannot see it: a user's forward may, and dropout draws in the order of memory."""
    resnet = Architecture("resnet", (1, 8, 8), 10).build()
    assert takes_channels_last(resnet)
    assert not takes_channels_last(nn.Sequential(*resnet, nn.Dropout()))
    assert not takes_channels_last(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    resnet[0].register_forward_hook(lambda *_: None)
    assert not takes_channels_last(resnet)


def test_channels_innermost_is_the_same_function_after_every_step():
    architecture = Architecture("resnet", (3, 9, 8), 10)
    local = LocalTraining(learning_rate=0.02, batch=8, momentum=0.5, weight_decay=0.001)
    start = torch.from_numpy(initial_model(architecture, seed=3))
    fast = engine_for(architecture.build(), local, seed=SEED)
    plain = PlainEngine(architecture.build(), local, seed=SEED)
    for count in (8, 16, 24):
        ours, theirs = (train(engine, start, tasks_for(architecture, [count]), 1) for engine in (fast, plain))
        assert (ours - theirs).abs().max() < 1e-6
