"""The compiled CNN at every level of the processor, against the plain loop, and what it leaves to others."""

import ctypes
from pathlib import Path

import pytest
import torch
from torch import nn

from fedcrab import native
from fedcrab.errors import ConfigError
from fedcrab.simulate.engines import cnn_compiled, one_thread
from fedcrab.simulate.engines.cnn import ChannelsLast, CnnEngine, rewritten
from fedcrab.simulate.engines.cnn_compiled import MOST_LAYERS, CompiledCnnEngine, compiled, compiled_is_faster
from fedcrab.simulate.engines.plain import LocalTraining, PlainEngine, Task
from fedcrab.simulate.models import read

SEED = 4
LOCAL = LocalTraining(learning_rate=0.05, batch=40)  # more than are in memory together


def sequence(*steps, shape=(1, 16, 16), classes=3, hidden=()):
    """Steps, flattening, and linear layers with ReLU between; with the shape of an example."""
    torch.manual_seed(0)
    body = nn.Sequential(*steps, nn.Flatten())
    features = body(torch.zeros(2, *shape)).shape[1]
    for width in hidden:
        body.append(nn.Linear(features, width)).append(nn.ReLU())
        features = width
    return body.append(nn.Linear(features, classes)), shape


def conv(*sizes, **settings):
    return nn.Conv2d(*sizes, **settings)


def relu():
    return nn.ReLU()


def pool():
    return nn.MaxPool2d(2)


NETWORKS = {
    "one convolution": lambda: sequence(conv(1, 6, 5), relu(), pool()),
    "only a convolution": lambda: sequence(conv(2, 3, 3, bias=False), shape=(2, 9, 7)),
    "pooled before ReLU": lambda: sequence(conv(1, 6, 5), pool(), relu(), conv(6, 16, 5), relu()),
    "never pooled": lambda: sequence(conv(1, 6, 5), relu(), conv(6, 16, 5), relu()),
    "no ReLU": lambda: sequence(conv(1, 6, 5), pool(), conv(6, 16, 5)),
    "no bias": lambda: sequence(conv(1, 6, 5, bias=False), pool(), relu(), conv(6, 8, 5, bias=False), relu()),
    "padded": lambda: sequence(
        conv(1, 6, 5, padding=2), relu(), pool(), conv(6, 16, 5, padding=(1, 2)), relu(), pool()
    ),
    "odd sizes": lambda: sequence(
        *(conv(3, 6, 4, padding=(1, 0)), relu(), pool(), conv(6, 7, (2, 3), padding=1), pool()),
        shape=(3, 15, 18),
    ),
    "many channels": lambda: sequence(
        *(conv(3, 40, 3, padding=1), relu(), conv(40, 33, 3), relu(), pool(), conv(33, 17, 1), relu()),
        shape=(3, 12, 9),
    ),
    "16, 32 and 64 channels": lambda: sequence(
        *(conv(1, 16, 3, padding=1), relu(), pool(), conv(16, 32, 3, padding=1), relu(), pool()),
        *(conv(32, 64, 3, padding=1), relu(), pool()),
    ),
    "large kernels": lambda: sequence(conv(1, 6, 9, padding=4), relu(), pool(), conv(6, 5, 7), relu()),
    "hidden layers": lambda: sequence(
        conv(1, 6, 5), relu(), pool(), conv(6, 16, 5), relu(), hidden=(35, 9), classes=100
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def single():
    with one_thread():
        yield


@pytest.fixture(params=native.LEVELS)
def library(request):
    path = Path(native.__file__).parent / f"{request.param}.so"
    if not path.exists() or not ctypes.CDLL(str(path)).supported():
        pytest.skip(f"no kernels for {request.param}")
    return ctypes.CDLL(str(path))


class Unused:
    """An engine that must not be needed."""

    together = 1

    def train(self, *_, **__):
        raise AssertionError("the client was left to the other engine")


def tasks_for(module, shape, sizes, classes=3):
    draw = torch.Generator().manual_seed(1)
    size = len(read(list(module.parameters())))
    return [
        Task(
            str(client),
            torch.rand(n, *shape, generator=draw),
            torch.randint(0, classes, (n,), generator=draw),
            torch.empty(size),
        )
        for client, n in enumerate(sizes)
    ]


def updates(engine, start, tasks):
    engine.train(start, tasks, round=1, epochs=2)
    return torch.stack([task.update for task in tasks])


@pytest.mark.parametrize("name", NETWORKS)
def test_equal_to_the_plain_loop(name, library):
    module, shape = NETWORKS[name]()
    start = read(list(module.parameters()))
    local = LocalTraining(learning_rate=0.05, batch=40, momentum=0.5, weight_decay=0.01)
    network = compiled(library, rewritten(module), shape)
    tasks = tasks_for(module, shape, [43, 1, 5])
    got = updates(CompiledCnnEngine(network, Unused(), local, seed=SEED), start, tasks)
    expected = updates(PlainEngine(module, local, seed=SEED), start, tasks)
    assert (got - expected).abs().max() < 1e-6


DECLINED = {
    "a stride": lambda: sequence(conv(1, 6, 5, stride=2), relu()),
    "groups": lambda: sequence(conv(1, 6, 5), relu(), conv(6, 16, 5, groups=2)),
    "dilated": lambda: sequence(conv(1, 6, 5, dilation=2), relu()),
    "padded by a name": lambda: sequence(conv(1, 6, 5, padding="same"), relu()),
    "padded by reflection": lambda: sequence(conv(1, 6, 5, padding=2, padding_mode="reflect")),
    "pooled by three": lambda: sequence(conv(1, 6, 5), nn.MaxPool2d(3)),
    "pooled twice": lambda: sequence(conv(1, 6, 5), pool(), pool()),
    "linear layers side by side": lambda: (sequence(conv(1, 6, 5))[0].append(nn.Linear(3, 3)), (1, 16, 16)),
    "examples of another shape": lambda: (sequence(conv(1, 6, 5))[0], (1, 17, 22)),
    "too many layers": lambda: sequence(conv(1, 6, 5), hidden=[4] * MOST_LAYERS),
}


@pytest.mark.parametrize("name", DECLINED)
def test_declined(name, library):
    module, shape = DECLINED[name]()
    assert compiled(library, rewritten(module), shape) is None


@pytest.mark.parametrize(
    ("name", "fewest_lanes"), [("one convolution", 4), ("no ReLU", 99), ("never pooled", 16), ("padded", 4)]
)
def test_the_last_gradients_must_be_sparse(name, fewest_lanes, library):
    module, _ = NETWORKS[name]()
    assert compiled_is_faster(library, rewritten(module)) == (library.cnn_lanes() >= fewest_lanes)


def test_large_kernels_between_many_channels_are_for_spectra(library):
    for channels, size, faster in [(16, 5, True), (200, 5, False), (200, 3, True)]:
        module, _ = sequence(conv(1, channels, 5), relu(), pool(), conv(channels, 32, size), relu(), pool())
        assert compiled_is_faster(library, rewritten(module)) == faster


def test_large_images_are_trained_in_smaller_chunks_or_declined(library, monkeypatch):
    module, shape = NETWORKS["padded"]()
    for floats, fits in [(200_000, True), (60_000, True), (10_000, False)]:
        monkeypatch.setattr(cnn_compiled, "MOST_FLOATS", floats)
        network = compiled(library, rewritten(module), shape)
        assert (network is not None) == fits
        if network is not None:
            engine, tasks = (
                CompiledCnnEngine(network, Unused(), LOCAL, seed=SEED),
                tasks_for(module, shape, [43]),
            )
            start = read(list(module.parameters()))
            expected = updates(PlainEngine(module, LOCAL, seed=SEED), start, tasks).clone()
            assert (updates(engine, start, tasks) - expected).abs().max() < 1e-6


def both(library):
    """The compiled engine, and the one that it leaves clients to; with a start and two clients."""
    module, shape = sequence(conv(1, 6, 5), relu(), pool(), conv(6, 16, 5), relu())
    network, start = rewritten(module), read(list(module.parameters()))
    other = CnnEngine(ChannelsLast(network), None, LOCAL, seed=SEED)
    engine = CompiledCnnEngine(compiled(library, network, shape), other, LOCAL, seed=SEED)
    return engine, other, start, tasks_for(module, shape, [20, 50])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", ["first kernel", "second kernel", "last bias", "a pixel"])
def test_numbers_that_are_not_finite_are_left_to_the_other_engine(value, place, library):
    engine, other, start, tasks = both(library)
    if place == "a pixel":
        tasks[1].x[7, 0, 3, 4] = value
    else:
        start[{"first kernel": 30, "second kernel": 200, "last bias": -1}[place]] = value
    got, expected = updates(engine, start, tasks), updates(other, start, tasks)
    assert not expected[1].isfinite().all()
    assert torch.allclose(got[1], expected[1], equal_nan=True, rtol=0, atol=0)


def test_a_hidden_infinity(library):
    """Infinite activations whose weights are all negative: the logits are finite, the gradients are not."""
    engine, other, start, tasks = both(library)
    start[:150], start[150:156] = 3e38, 3e38
    start[156 : 156 + 2400] = -start[156 : 156 + 2400].abs()
    got, expected = updates(engine, start, tasks), updates(other, start, tasks)
    assert expected.isnan().any()
    assert torch.allclose(got, expected, equal_nan=True, rtol=0, atol=0)


def test_divergence(library):
    module, shape = sequence(conv(1, 6, 5), relu(), pool(), conv(6, 16, 5), relu())
    network, start = rewritten(module), read(list(module.parameters()))
    local = LocalTraining(learning_rate=1e30, batch=10)
    other = CnnEngine(ChannelsLast(network), None, local, seed=SEED)
    engine = CompiledCnnEngine(compiled(library, network, shape), other, local, seed=SEED)
    tasks = tasks_for(module, shape, [60])
    assert updates(engine, start, tasks).isnan().any()


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_an_error(label, library):
    engine, _, start, tasks = both(library)
    tasks[0].y[3] = label
    with pytest.raises((IndexError, RuntimeError)):
        updates(engine, start, tasks)


def test_examples_in_another_order_or_type_are_left_to_the_other_engine(library):
    engine, other, start, tasks = both(library)
    task = tasks[1]
    for x, y in [
        (task.x.transpose(2, 3), task.y),
        (task.x.repeat_interleave(2, 0)[::2], task.y),
        (task.x, task.y.repeat_interleave(2)[::2]),
    ]:
        given = [Task("1", x, y, task.update)]
        expected = updates(other, start, given).clone()
        assert torch.equal(updates(engine, start, given), expected)


def test_a_vector_of_another_length_is_an_error(library):
    engine, _, start, tasks = both(library)
    with pytest.raises(ConfigError, match="numbers"):
        updates(engine, start[1:], tasks)


def test_what_came_before_changes_no_bit(library):
    """The workspace is used again: after other clients, after a failure, with other sizes."""
    engine, _, start, tasks = both(library)
    alone = updates(engine, start, tasks[1:]).clone()
    broken = tasks_for(nn.Flatten(), (1, 16, 16), [33])
    broken[0] = Task("2", broken[0].x.fill_(float("nan")), broken[0].y, torch.empty(len(start)))
    updates(engine, start, broken)
    assert torch.equal(updates(engine, start, tasks)[1:], alone)
