"""MLPs in compiled code: the three forms of the first layer, and that only speed depends on the cache."""

import pytest
import torch
from torch import nn

from fedcrab import native
from fedcrab.errors import ConfigError
from fedcrab.simulate.engines import engine_for, one_thread
from fedcrab.simulate.engines.mlp import layers_of
from fedcrab.simulate.engines.mlp_compiled import CompiledMlpEngine
from fedcrab.simulate.engines.plain import LocalTraining, PlainEngine, Task
from fedcrab.simulate.machine import Workplace
from fedcrab.simulate.models import read

pytestmark = pytest.mark.skipif(native.library() is None, reason="the package was built without a C compiler")
SEED, FEATURES, SIZES = 5, 784, (60, 61, 300, 7)


@pytest.fixture(autouse=True)
def single():
    with one_thread():
        yield


def wide(*, bias: bool = True, width: int = 35) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, width, bias=bias), nn.ReLU(), nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 3)
    )


def tasks_of(size: int, *, held: bool = False, other: int = 0, dense: float = 0.7) -> list[Task]:
    """Tasks whose examples have this share of numbers that are not 0."""
    draw = torch.Generator().manual_seed(2 + other)
    return [
        Task(
            str(n),
            torch.rand(n, FEATURES, generator=draw) * (torch.rand(n, FEATURES, generator=draw) < dense),
            torch.randint(0, 3, (n,), generator=draw),
            torch.empty(size),
            (other, n) if held else None,
        )
        for n in SIZES
    ]


def trained(engine, start, tasks, *, round=0, epochs=5):
    engine.train(start, tasks, round=round, epochs=epochs)
    return torch.stack([task.update for task in tasks])


def forms_of(engine, task, epochs):
    """Whether the first layer is sparse, and whether it is dual."""
    sparse = engine._sparse(task, task.x)
    return sparse is not None, engine._dual(task.x, sparse, epochs)


LOADED = [name for name in native.LEVELS if (native.FOLDER / f"{name}.so").exists()]


@pytest.mark.parametrize("level", LOADED)
@pytest.mark.parametrize(("bias", "width"), [(True, 35), (False, 35), (True, 150)])
@pytest.mark.parametrize(
    ("dense", "epochs", "form"),
    [(0.7, 1, (False, False)), (0.7, 5, (False, True)), (0.1, 1, (True, False)), (0.1, 5, (True, True))],
)
def test_equal_to_the_plain_loop(level, bias, width, dense, epochs, form):
    kernels = native.load(level)
    if kernels is None:
        pytest.skip(f"this processor does not run {level} kernels")
    local, module = LocalTraining(learning_rate=0.05, batch=50), wide(bias=bias, width=width)
    start = read(list(module.parameters()))
    engine = CompiledMlpEngine(kernels, layers_of(module), local, seed=SEED, cache_bytes=1 << 20)
    tasks = tasks_of(len(start), dense=dense)
    assert forms_of(engine, tasks[0], epochs) == form
    plain = trained(
        PlainEngine(module, local, seed=SEED), start, tasks_of(len(start), dense=dense), epochs=epochs
    )
    assert plain.abs().max() > 1e-3
    assert (trained(engine, start, tasks, epochs=epochs) - plain).abs().max() < 1e-6


@pytest.mark.parametrize("dense", [0.7, 0.1])
@pytest.mark.parametrize("epochs", [1, 2])
def test_equal_after_every_single_step(epochs, dense):
    """A smaller batch each time: epochs of 1, 2, 3, ... steps."""
    module = wide()
    start = read(list(module.parameters()))
    for batch in (60, 30, 20, 15, 12, 10, 7, 5, 1):
        local = LocalTraining(learning_rate=0.1, batch=batch)
        fast, plain = (
            trained(engine, start, tasks_of(len(start), dense=dense)[:1], epochs=epochs)
            for engine in (engine_for(module, local, seed=SEED), PlainEngine(wide(), local, seed=SEED))
        )
        assert (fast - plain).abs().max() < 1e-6


@pytest.mark.parametrize("dense", [0.7, 0.1])
def test_bits_do_not_depend_on_what_is_cached(dense):
    module, local = wide(), LocalTraining(learning_rate=0.05)
    start = read(list(module.parameters()))
    large, small, none, uncached = (
        engine_for(module, local, seed=SEED, workplace=Workplace(cache_bytes=size))
        for size in (1 << 28, 100_000, 0, 1 << 28)
    )
    for t in range(3):
        expected = trained(uncached, start, tasks_of(len(start), dense=dense), round=t)
        for engine in (large, small, none):
            got = trained(engine, start, tasks_of(len(start), held=True, dense=dense), round=t)
            assert torch.equal(got, expected)
    assert len(large._kernels._made) == len(SIZES)
    assert 0 < len(small._kernels._made) < len(SIZES)
    assert not none._kernels._made


def test_other_examples_under_another_name_are_others():
    module, local = wide(), LocalTraining(learning_rate=0.05)
    start = read(list(module.parameters()))
    engine = engine_for(module, local, seed=SEED)
    trained(engine, start, tasks_of(len(start), held=True))
    got = trained(engine, start, tasks_of(len(start), held=True, other=1))
    assert torch.equal(
        got, trained(engine_for(module, local, seed=SEED), start, tasks_of(len(start), other=1))
    )


def test_which_form_is_taken():
    engine = CompiledMlpEngine(
        native.library(), layers_of(wide()), LocalTraining(), seed=SEED, cache_bytes=1 << 20
    )
    draw = torch.Generator().manual_seed(0)

    def form(examples, dense, epochs):
        x = torch.rand(examples, FEATURES, generator=draw)
        x *= torch.rand(examples, FEATURES, generator=draw) < dense
        return forms_of(engine, Task("a", x, torch.zeros(examples), torch.empty(0)), epochs)

    assert form(600, 0.19, 5) == (True, True)  # MNIST
    assert form(600, 0.19, 1) == (True, False)
    assert form(900, 0.5, 5) == (False, True)  # Fashion-MNIST
    assert form(900, 0.5, 1) == (False, False)
    assert form(1025, 1, 5) == (False, False)


@pytest.mark.parametrize("labels", [[0, 3], [-1, 2]])
def test_labels_that_the_model_does_not_have(labels):
    """The kernel would write beyond its memory."""
    module = wide()
    start = read(list(module.parameters()))
    task = Task("a", torch.rand(2, FEATURES), torch.tensor(labels), torch.empty(len(start)))
    with pytest.raises(ConfigError, match="labels must be between 0 and 2"):
        trained(engine_for(module, LocalTraining(), seed=0), start, [task])


def test_examples_of_another_width():
    module = wide()
    start = read(list(module.parameters()))
    task = Task("a", torch.rand(2, 783), torch.tensor([0, 1]), torch.empty(len(start)))
    with pytest.raises(ConfigError, match="784 float32 features, got 783"):
        trained(engine_for(module, LocalTraining(), seed=0), start, [task])


def test_what_is_not_finite_comes_back_as_it_is():
    module = wide()
    start = read(list(module.parameters())).index_fill(0, torch.tensor(3), torch.inf)
    engine = engine_for(module, LocalTraining(), seed=SEED)
    assert not trained(engine, start, tasks_of(len(start))).isfinite().all()
    exploding = engine_for(module, LocalTraining(learning_rate=1e30), seed=SEED)
    fine = read(list(module.parameters()))
    assert not trained(exploding, fine, tasks_of(len(fine))).isfinite().all()


def test_a_training_that_diverges_is_not_finite():
    """Zeros are skipped, but an infinite weight stays infinite."""
    module = wide()
    start = read(list(module.parameters()))
    for dense in (0.1, 0.7):
        engine = engine_for(module, LocalTraining(learning_rate=1e30), seed=SEED)
        assert not trained(engine, start, tasks_of(len(start), dense=dense)[:2]).isfinite().all(1).any()
