"""Forensics where there are no images, and where nothing happened: what can be said, and what cannot."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedcrab import Everything, History, Round, Updates
from fedcrab.audit import FlatModel, Inversion
from fedcrab.detect import Detection, Suspicion
from fedcrab.detect.saved_audit import read_audit
from fedcrab.experiment.forensics import Investigation, Server, Taught, investigate, keep
from fedcrab.simulate.models import layout_of

CLIENTS, CLASSES = "abcdefgh", 3


def trained(place: Path, module: nn.Module, *, taught: frozenset[str] = frozenset()) -> History:
    """Three rounds of small random updates; some clients raise the last class."""
    layout, rng = layout_of(module), np.random.default_rng(0)
    model = rng.normal(scale=0.1, size=layout.size).astype(np.float32)
    with History.create(place, model, initial_loss=1.0, selection=Everything(), layout=layout) as history:
        for t in range(3):
            rows = {c: rng.normal(scale=0.01, size=layout.size) for c in CLIENTS}
            for client in taught:
                rows[client][-1] += 1.0
            updates = Updates.of({c: (row.astype(np.float32), 10) for c, row in rows.items()})
            step = updates.vectors.mean(axis=0)
            history.record(Round(t, model, updates, step, loss=1.0, divergence=0.1))
            model = model + step
    return History.open(place)


@pytest.mark.parametrize("shape", [(5,), (4, 6)])
def test_tables_and_sequences_have_no_patch_and_can_be_asked_who(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), CLASSES))
    history = trained(tmp_path / "h", module, taught=frozenset("ab"))
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, *shape)).astype(np.float32), np.arange(30) % CLASSES
    server = Server(FlatModel(module, history.charter.layout), x, y, CLASSES)
    nothing = investigate(history, server=server)
    assert (nothing.trigger, nothing.planted_in, nothing.teachers, nothing.detections()) == (
        None,
        None,
        {},
        [],
    )
    assert "are not images" in nothing.notes[0]
    np.savez(tmp_path / "e.npz", x=x[:5], y=np.full(5, 2))
    found = investigate(history, server=server, examples=tmp_path / "e.npz")
    (brought,) = found.detections()
    assert set(brought.scores) == set(CLIENTS)
    keep(history.path, found)
    saved = read_audit(history.path, history.contents.head)
    assert saved is not None
    assert saved["models"] == []
    assert [row["about"] for row in saved["taught"]] == ["brought"]


@pytest.mark.parametrize("shape", [(1, 5, 7), (2, 6, 6), (3, 8, 4)])
def test_any_number_of_channels_and_any_shape_is_audited(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    module = nn.Sequential(nn.Conv2d(shape[0], 2, 3), nn.Flatten(), nn.LazyLinear(CLASSES))
    x = np.random.default_rng(1).random((24, *shape)).astype(np.float32)
    module(torch.tensor(x))
    history = trained(tmp_path / "h", module)
    server = Server(FlatModel(module, history.charter.layout), x, np.arange(24) % CLASSES, CLASSES)
    found = investigate(history, server=server)
    assert found.first is not None
    assert found.first.mask.shape == shape[1:]
    assert found.first.pattern.shape == shape
    assert found.teachers == {}
    keep(history.path, found)
    saved = read_audit(history.path, history.contents.head)
    assert saved is not None
    assert [row["model"] for row in saved["models"]] == ["final"]


def test_two_classes_are_too_few_to_compare(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    history = trained(tmp_path / "h", module)
    x = np.random.default_rng(1).random((10, 1, 4, 4)).astype(np.float32)
    server = Server(FlatModel(module, history.charter.layout), x, np.arange(10) % 2, 2)
    assert "two or more other classes" in investigate(history, server=server).notes[0]


def test_what_is_in_doubt_is_a_trigger_if_somebody_taught_it() -> None:
    sizes = np.array([10, 20, 20, 20], np.float32)
    masks = np.zeros((4, 5, 5), np.float32) + sizes[:, None, None] / 25
    mask = Inversion(masks, np.zeros((4, 1, 5, 5), np.float32), np.ones(4), 1)
    assert (mask.ratio, mask.planted, mask.suspicious, mask.confidence) == (0.5, False, True, 0.0)
    known = ("head", ("a", "b"), {"final": mask}, {"final": "0"}, {"final": 0.9}, None)
    alone = Investigation(*known, (), np.zeros((1, 1, 5, 5), np.float32), ())
    assert alone.trigger is None
    assert "nobody taught one" in alone.detections()[0].notes[0]
    assert not alone.to_table()["models"][0]["planted"]
    named = Detection("taught", 3, {"a": 1.0, "b": 0.0}, {"a": Suspicion("taught it", 0.95)}, 3.0)
    taught = replace(alone, taught=(Taught("trigger", 0, named, None),))
    assert taught.trigger is mask
    row = taught.to_table()["models"][0]
    assert (row["planted"], row["confidence"]) == (True, 0.95)
    assert taught.detections() == [named]
