"""Another device than the processor: refused where there is none, and one path of code where there is.

Without such a device torch's "meta" device stands in: its tensors have no numbers, but operations refuse
operands of which one is there and another is not.
"""

import numpy as np
import pytest
import torch
from torch import nn

from fedcrab.errors import ConfigError
from fedcrab.experiment.cell_cache import identity, key_of
from fedcrab.experiment.config import Config, load_config
from fedcrab.experiment.setup import prepare
from fedcrab.simulate import Predictor, SimulatedFleet, iid, load_dataset, machine
from fedcrab.simulate.engines import engine_for, plain
from fedcrab.simulate.engines.plain import LocalTraining, PlainEngine, Task
from fedcrab.simulate.machine import Workplace, check_device, default_cache, default_workers
from fedcrab.simulate.models import Architecture, read, tensors

SHAPE = (1, 8, 8)
needs_none = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the missing device")


@needs_none
def test_a_device_that_there_is_not_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"device 'cuda' is not available on this machine to torch .*cpu"):
        prepare(load_config("digits", ["device=cuda"]))
    with pytest.raises(ConfigError, match="device: input should be 'cpu', 'cuda' or 'mps', got 'tpu'"):
        load_config("digits", ["device=tpu"])
    with pytest.raises(ConfigError, match="no device 'tpu'; there are cpu, cuda, mps"):
        check_device("tpu")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet"])
def test_any_model_trains_in_the_plain_loop_with_everything_on_the_device(name, monkeypatch):
    """What comes from the processor is moved there, and only the update comes back."""
    local = LocalTraining(batch=4, momentum=0.9, weight_decay=0.1)
    module = Architecture(name, SHAPE, 10).build()
    engine = engine_for(module, local, seed=0, shape=SHAPE, workplace=Workplace("meta"))
    assert isinstance(engine, PlainEngine)
    size, came_back = sum(part.numel() for part in tensors(module).values()), []

    def from_device(parts):
        assert {part.device.type for part in parts} == {read(parts).device.type} == {"meta"}
        came_back.append(len(parts))
        return torch.ones(size)

    monkeypatch.setattr(plain, "read", from_device)
    task = Task("0", torch.rand(10, *SHAPE), torch.zeros(10, dtype=torch.int64), torch.zeros(size))
    engine.train(torch.zeros(size), [task], round=0, epochs=2)
    assert came_back == [len(tensors(module))]
    assert task.update.eq(1).all()


def test_meta_tensors_would_tell():
    with pytest.raises(RuntimeError, match="device"):
        nn.Linear(3, 3).to("meta")(torch.rand(2, 3))


def test_predictions_are_made_on_the_device(monkeypatch):
    predictor = Predictor(Architecture("cnn", SHAPE, 10), device="meta")
    model = np.zeros(sum(part.numel() for part in predictor._tensors), np.float32)
    with pytest.raises(NotImplementedError, match="meta"):  # on the way back, which has no numbers
        predictor.log_probabilities(model, np.zeros((3, *SHAPE), np.float32))
    monkeypatch.setattr(torch.Tensor, "cpu", lambda found: torch.full(found.shape, found.is_meta))
    assert predictor.log_probabilities(model, np.zeros((3, *SHAPE), np.float32)).all()


def test_the_device_reaches_the_workers(monkeypatch):
    monkeypatch.setattr(machine, "DEVICES", ("meta",))
    monkeypatch.setattr(machine, "_is_available", lambda name: True)
    monkeypatch.delenv("FEDCRAB_WORKERS")
    digits = load_dataset("digits")
    parts = iid(digits.train_y, clients=2, seed=0)
    fleet = SimulatedFleet(digits, parts, seed=0, device="meta", cache_mb=3)
    workers = fleet._plant.workers
    assert workers.count == default_workers("meta") == 1
    assert workers._greeting["workplace"] == {"device": "meta", "cache_bytes": 3 << 20}


def test_a_processor_changes_no_key_and_no_note():
    """Of a configuration from before there was a choice."""
    config = load_config("digits")
    assert "device" not in config.to_json()
    assert Config.from_json(config.to_json()) == config
    elsewhere = load_config("digits", ["device=mps"])
    assert Config.from_json(elsewhere.to_json()) == elsewhere

    class Method:
        def to_table(self):
            return {}

    ours, theirs = (identity(each, Method(), membership=False) for each in (config, elsewhere))
    assert "device" not in ours["training"]
    assert key_of(ours) != key_of(theirs)


def test_memory_is_bounded_by_a_setting(monkeypatch):
    monkeypatch.setenv("FEDCRAB_CACHE_MB", "7")
    assert default_cache() == 7 << 20
    monkeypatch.setenv("FEDCRAB_CACHE_MB", "much")
    with pytest.raises(ConfigError, match="FEDCRAB_CACHE_MB must be a whole number, 0 or more, got 'much'"):
        default_cache()
    monkeypatch.delenv("FEDCRAB_CACHE_MB")
    monkeypatch.setattr(machine, "_memory", lambda: 16 << 30)
    assert default_cache() == 2 << 30
    monkeypatch.setattr(machine, "_memory", lambda: 0)
    assert default_cache() == 256 << 20
