"""Large replies are in memory once; what strategies compute and what is recorded stays the same."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg, FedAvgM, FedMedian, Krum
from scenes import everyone, grid, initial, recorded

from fedcrab.flower import recorder
from fedcrab.flower.arrays import array_layout, as_record
from fedcrab.flower.row_arrays import HeldReply, RowArray

KINDS = {
    "single": np.arange(12, dtype=np.float32).reshape(3, 4),
    "scalar": np.array(2.5, np.float32),
    "by columns": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "double": np.array([0.1, 0.2]),
    "half": np.array([1, 2, 3], np.float16),
    "steps": np.array([7]),
    "none": np.zeros((0, 3), np.float32),
}


class Keeping(FedAvg):
    """Keeps the first reply's arrays of every round."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.kept: list[tuple[Array, bytes]] = []

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        array = next(iter(replies[0].content.array_records.values()))["weight"]
        self.kept.append((array, array.data))
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("kind", [FedAvg, FedAvgM, FedMedian, Krum])
def test_the_same_is_recorded_in_less_memory(
    kind: type[FedAvg], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = recorded(tmp_path / "plain", grid(), 3, everyone(kind))
    monkeypatch.setattr(recorder, "LARGE", -1)
    held = recorded(tmp_path / "held", grid(), 3, everyone(kind))
    assert held.final_model().tobytes() == plain.final_model().tobytes()
    assert [r.digests for r in held.rounds] == [r.digests for r in plain.rounds]
    assert [r.after for r in held.rounds] == [r.after for r in plain.rounds]


def test_what_a_strategy_keeps_does_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "LARGE", -1)
    strategy = everyone(Keeping)
    recorded(tmp_path / "h", grid(), 2, strategy)
    assert all(isinstance(array, RowArray) and array.data == data for array, data in strategy.kept)


def test_arrays_are_those_that_the_client_sent() -> None:
    sent = ArrayRecord({name: Array(array) for name, array in KINDS.items()})
    model = array_layout(sent)
    start, rows = np.ones(model.layout.size, np.float32), np.zeros((2, model.layout.size), np.float32)
    record = ArrayRecord({name: Array(array) for name, array in KINDS.items()})
    held = HeldReply(model, record, start, rows[1])
    arrays = dict(record.items())
    assert {name for name, array in arrays.items() if isinstance(array, RowArray)} >= {"single", "scalar"}
    rows[0] = rows[1]
    held.move(rows[0])
    rows[1] = np.nan
    for _ in range(2):
        for name, array in arrays.items():
            assert (array.dtype, array.shape, array.stype) == (
                *(sent[name].dtype, sent[name].shape),
                sent[name].stype,
            )
            assert array.data == sent[name].data
            np.testing.assert_array_equal(array.numpy(), sent[name].numpy())
        assert held.is_finite(start, rows[0])
        held.subtract(start, rows[0])
    assert rows[0].tobytes() != rows[1].tobytes()


def test_an_update_that_overflows_is_found() -> None:
    model = array_layout(initial())
    start = np.full(model.layout.size, -3e38, np.float32)
    record, row = as_record({n: 0 * a.numpy() + 3e38 for n, a in initial().items()}), np.zeros_like(start)
    record = ArrayRecord(
        {n: Array(a.numpy().astype(initial()[n].dtype)) for n, a in record.items() if n == "weight"}
    )
    assert not HeldReply(model, record, start, row).is_finite(start, row)
    assert HeldReply(model, record, -start, row).is_finite(-start, row)


@pytest.mark.parametrize("name", [*KINDS])
def test_one_copy_gives_the_bytes_of_flowers_own(name: str) -> None:
    ours, flowers = as_record({"a": KINDS[name]})["a"], Array(KINDS[name])
    assert (ours.dtype, ours.shape, ours.stype, ours.data) == (
        *(flowers.dtype, flowers.shape),
        *(flowers.stype, flowers.data),
    )
