"""The dual form of the first layer: where it is taken, and that nothing but speed depends on what is kept."""

import pytest
import torch
from torch import nn

from fedcrab.simulate.engines import engine_for, one_thread
from fedcrab.simulate.engines import mlp_dual as dual
from fedcrab.simulate.engines.mlp import layers_of
from fedcrab.simulate.engines.mlp_dual import dual_is_faster
from fedcrab.simulate.engines.mlp_step import SELDOM, ClientCache, Workspace, used_features
from fedcrab.simulate.engines.plain import LocalTraining, PlainEngine, Task
from fedcrab.simulate.machine import Workplace
from fedcrab.simulate.models import Architecture, read

SEED = 5
FEATURES, SIZES = 784, (60, 61, 300, 7)
MNIST = Architecture("mlp", (1, 28, 28), 10)


@pytest.fixture(autouse=True)
def single():
    with one_thread():
        yield


def wide(*, bias: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 32, bias=bias), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3)
    )


def tasks_of(size: int, *, held: bool = False, other: int = 0) -> list[Task]:
    draw = torch.Generator().manual_seed(2 + other)
    return [
        Task(
            str(n),
            torch.rand(n, FEATURES, generator=draw) * (torch.rand(FEATURES, generator=draw) > 0.3),
            torch.randint(0, 3, (n,), generator=draw),
            torch.empty(size),
            (other, n) if held else None,
        )
        for n in SIZES
    ]


def trained(engine, start, tasks, *, round=0, epochs=5):
    engine.train(start, tasks, round=round, epochs=epochs)
    return torch.stack([task.update for task in tasks])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("epochs", [2, 5])
@pytest.mark.parametrize("batch", [10, 64, 10_000])
def test_equal_to_the_plain_loop(bias, epochs, batch):
    local = LocalTraining(learning_rate=0.05, batch=batch)
    module = wide(bias=bias)
    start = read(list(module.parameters()))
    assert all(
        dual_is_faster(layers_of(module), local, examples=n, features=512, epochs=epochs) for n in SIZES
    )
    fast = trained(engine_for(module, local, seed=SEED), start, tasks_of(len(start)), epochs=epochs)
    plain = trained(
        PlainEngine(wide(bias=bias), local, seed=SEED), start, tasks_of(len(start)), epochs=epochs
    )
    assert plain.abs().max() > 1e-3
    assert (fast - plain).abs().max() < 1e-6


def test_equal_after_every_single_step():
    """A smaller batch each time: 2 epochs of 1, 2, 3, ... steps."""
    module = wide(bias=True)
    start = read(list(module.parameters()))
    for batch in (60, 30, 20, 15, 12, 10, 7, 5):
        local = LocalTraining(learning_rate=0.1, batch=batch)
        fast = trained(engine_for(module, local, seed=SEED), start, tasks_of(len(start))[:1], epochs=2)
        plain = trained(
            PlainEngine(wide(bias=True), local, seed=SEED), start, tasks_of(len(start))[:1], epochs=2
        )
        assert (fast - plain).abs().max() < 1e-6


def test_bits_do_not_depend_on_what_is_kept():
    module, local = wide(bias=True), LocalTraining(learning_rate=0.05)
    start = read(list(module.parameters()))
    keeping, few, forgetting, never = (
        engine_for(module, local, seed=SEED, workplace=Workplace(cache_bytes=size))
        for size in (1 << 28, 100_000, 0, 1 << 28)
    )
    for t in range(3):
        expected = trained(never, start, tasks_of(len(start)), round=t)
        for engine in (keeping, few, forgetting):
            assert torch.equal(trained(engine, start, tasks_of(len(start), held=True), round=t), expected)
    assert len(keeping._dual.kernels._tensors) == len(SIZES)
    assert 0 < len(few._dual.kernels._tensors) < len(SIZES)
    assert not forgetting._dual.kernels._tensors


def test_bits_do_not_depend_on_the_stack(monkeypatch):
    """Clients of about one size are stacked, whatever features they use."""
    module, local = wide(bias=True), LocalTraining(learning_rate=0.05, batch=16)
    start = read(list(module.parameters()))
    tasks = tasks_of(len(start))
    tasks[0].x[:, 100:400] = 0
    assert len(used_features(tasks[0].x)) < len(used_features(tasks[1].x)) < FEATURES
    together = trained(engine_for(module, local, seed=SEED), start, tasks)
    monkeypatch.setattr(dual, "KERNEL_NUMBERS", 1)
    assert torch.equal(trained(engine_for(module, local, seed=SEED), start, tasks), together)
    alone = [trained(engine_for(module, local, seed=SEED), start, [task])[0] for task in tasks]
    assert torch.equal(torch.stack(alone), together)


def test_how_many_are_stacked():
    layers, local = layers_of(MNIST.build()), LocalTraining()
    sizes = {
        columns: dual.DualTraining(layers, local, cache_bytes=0).together(columns)
        for columns in (32, 608, 1024)
    }
    assert sizes[608] == 5
    assert sizes[1024] >= 1
    assert all(n * columns * (columns + 2 * 128) <= dual.KERNEL_NUMBERS for columns, n in sizes.items())


def test_room_is_lent_again():
    room = Workspace()
    first, second = room.lend((3, 5), (2, 2, 7))
    assert (first.shape, second.shape) == ((3, 5), (2, 2, 7))
    assert (second.data_ptr() - first.data_ptr()) % 64 == 0
    first.fill_(1), second.fill_(2)
    assert first.unique().tolist() == [1]
    assert room.lend((4,))[0].data_ptr() == first.data_ptr()
    assert room.lend((1000,))[0].shape == (1000,)


def test_other_examples_under_another_name_are_others():
    module, local = wide(bias=True), LocalTraining(learning_rate=0.05)
    start = read(list(module.parameters()))
    engine = engine_for(module, local, seed=SEED)
    trained(engine, start, tasks_of(len(start), held=True))
    got = trained(engine, start, tasks_of(len(start), held=True, other=1))
    assert torch.equal(
        got, trained(engine_for(module, local, seed=SEED), start, tasks_of(len(start), other=1))
    )


def test_where_it_pays():
    layers = layers_of(MNIST.build())
    sizes = {"examples": 600, "features": 608}
    assert dual_is_faster(layers, LocalTraining(), **sizes, epochs=5)
    assert not dual_is_faster(layers, LocalTraining(), **sizes, epochs=1)
    assert not dual_is_faster(layers, LocalTraining(), examples=1000, features=608, epochs=5)
    assert not dual_is_faster(layers, LocalTraining(), examples=2000, features=100_000, epochs=5)
    assert not dual_is_faster(layers, LocalTraining(momentum=0.9), **sizes, epochs=5)
    assert not dual_is_faster(layers, LocalTraining(weight_decay=0.1), **sizes, epochs=5)
    assert not dual_is_faster(
        layers_of(Architecture("softmax", (784,), 32).build()), LocalTraining(), **sizes, epochs=5
    )


def hits(cache, clients, rounds):
    """How often in the last of these rounds a client's tensor, of 10 numbers, was there."""
    made = []
    for _ in range(rounds):
        made.clear()
        for client in clients:
            assert len(cache.get(client, lambda client=client: made.append(client) or torch.zeros(10))) == 10
    return len(clients) - len(made)


def test_what_is_kept_when_all_fit():
    cache = ClientCache(most_bytes=3 * 40)
    assert hits(cache, ["a", "b", "a", "c", "b"], 1) == 2
    assert hits(cache, ["a", "b", None, None, "c"], 1) == 3


@pytest.mark.parametrize("clients", [11, 20, 100])
def test_clients_in_turn_find_almost_all_that_fits(clients):
    """The ones used last would find none."""
    cache = ClientCache(most_bytes=10 * 40)
    assert hits(cache, range(clients), 30) >= 9 - clients // SELDOM
    assert cache._bytes == sum(t.nbytes for t in cache._tensors.values()) <= 10 * 40


def test_a_cache_follows_other_clients():
    cache = ClientCache(most_bytes=10 * 40)
    hits(cache, range(10), 5)
    assert hits(cache, range(100, 105), 40) == 5


def test_what_is_larger_than_the_cache_is_not_kept():
    cache = ClientCache(most_bytes=39)
    assert hits(cache, "aaa", 2) == 0


def test_what_is_not_finite_comes_back_as_it_is():
    module = wide(bias=True)
    start = read(list(module.parameters())).index_fill(0, torch.tensor(3), torch.inf)
    engine = engine_for(module, LocalTraining(), seed=SEED)
    assert not trained(engine, start, tasks_of(len(start))).isfinite().all()
    exploding = engine_for(module, LocalTraining(learning_rate=1e30), seed=SEED)
    fine = read(list(module.parameters()))
    assert not trained(exploding, fine, tasks_of(len(fine))).isfinite().all()
