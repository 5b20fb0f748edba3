"""Data frames of pandas and data sets of Hugging Face, with the real packages.

Skipped where a package is not installed: `make integrations` installs them.
"""

from pathlib import Path

import numpy as np
import pytest

from fedcrab import ConfigError, History
from fedcrab.extras import has_extra
from fedcrab.simulate.hugging_face import from_partitions


def test_a_history_as_a_data_frame(tmp_path: Path) -> None:
    start = np.zeros(2, np.float32)
    with History.create(tmp_path / "h", start) as history:
        if not has_extra("pandas"):
            with pytest.raises(ConfigError, match="pandas"):
                history.to_frame()
            pytest.skip("make integrations installs pandas")
        history.record({"a": ([3.0, 4.0], 5), "b": ([0.0, 1.0], 1), "bad": ([np.nan, 0.0], 1)})
        after = history.final_model()
        history.record({"a": (after + 1, 5)})
        frame = history.to_frame()
    assert frame[["round", "client"]].values.tolist() == [[0, "a"], [0, "b"], [0, "bad"], [1, "a"]]
    assert frame.norm.tolist()[:2] == [5.0, 1.0]
    assert frame.examples.tolist()[:2] == [5.0, 1.0]
    assert frame.rejected.astype(bool).tolist() == [False, False, True, False]
    assert frame.groupby("client").norm.count().to_dict() == {"a": 2, "b": 1, "bad": 0}
    assert str(frame.ended.dtype).startswith("datetime64")


def pictures(count: int, *, colour: bool) -> dict[str, list]:
    rng = np.random.default_rng(0)
    shape = (4, 4, 3) if colour else (4, 4)
    from PIL import Image

    images = [Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)) for _ in range(count)]
    return {"image": images, "label": [i % 3 for i in range(count)]}


@pytest.mark.parametrize("colour", [False, True])
def test_partitions_of_pictures(colour: bool) -> None:
    datasets = pytest.importorskip("datasets", reason="make integrations installs it")
    table = pictures(30, colour=colour)
    whole = datasets.Dataset.from_dict(
        table, features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    )
    partitions = [whole.select(range(10)), whole.select(range(10, 30))]
    dataset, parts = from_partitions(partitions, whole.select(range(6)))
    assert dataset.shape == ((3, 4, 4) if colour else (1, 4, 4))
    assert dataset.classes == 3
    assert [len(part) for part in parts] == [10, 20]
    pixels = np.asarray(table["image"][12], np.float32) / 255
    assert dataset.train_x[parts[1][2]] == pytest.approx(
        pixels.transpose(2, 0, 1) if colour else pixels[None]
    )
    assert dataset.train_y[parts[1]].tolist() == table["label"][10:]


def test_partitions_of_flower_train_a_fleet() -> None:
    datasets = pytest.importorskip("datasets", reason="make integrations installs it")
    partitioner_of = pytest.importorskip("flwr_datasets.partitioner", reason="make integrations installs it")
    pytest.importorskip("torch")
    from fedcrab.simulate import Architecture, LocalTraining, SimulatedFleet, initial_model

    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    whole = datasets.Dataset.from_dict({"features": x.tolist(), "label": (x[:, 0] > 0).astype(int).tolist()})
    partitioner = partitioner_of.IidPartitioner(num_partitions=3)
    partitioner.dataset = whole
    partitions = [partitioner.load_partition(i) for i in range(3)]
    dataset, parts = from_partitions(partitions, whole.select(range(9)), x="features")
    assert (dataset.shape, dataset.classes) == ((5,), 2)
    architecture = Architecture("softmax", dataset.shape, dataset.classes)
    local = LocalTraining(learning_rate=0.1, batch=20, epochs=1)
    with SimulatedFleet(dataset, parts, architecture, seed=0, local=local, workers=0) as fleet:
        model = initial_model(architecture, seed=0)
        updates = fleet.train(model, fleet.clients, round=0)
    assert updates.weights.tolist() == [20.0, 20.0, 20.0]
    assert np.abs(updates.vectors).max() > 0


def test_what_cannot_be_used_is_refused() -> None:
    datasets = pytest.importorskip("datasets", reason="make integrations installs it")
    fine = datasets.Dataset.from_dict({"x": [[0.0, 1.0]], "label": [1]})
    ragged = datasets.Dataset.from_dict({"x": [[0.0], [0.0, 1.0]], "label": [1, 0]})
    texts = datasets.Dataset.from_dict({"x": [[0.0, 1.0]], "label": ["cat"]})
    for partitions, sentence in (
        ([], "no partitions"),
        ([ragged], "have different shapes"),
        ([texts], "one whole number per example"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            from_partitions(partitions, fine, x="x")
    with pytest.raises(ConfigError, match="no column 'image'; it has x, label"):
        from_partitions([fine], fine)
    with pytest.raises(ConfigError, match="outside 0 to 0"):
        from_partitions([fine], fine, x="x", classes=1)
