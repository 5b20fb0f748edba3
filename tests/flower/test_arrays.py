"""Named arrays to a flat vector and back; bytes that lie are found out before anything is made of them."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from fedcrab import ConfigError
from fedcrab.flower.arrays import array_layout, numbers
from fedcrab.recording.arrays import UpdateBuffers
from fedcrab.recording.training_history import divergence, weighted_median

SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
DTYPES = st.sampled_from(["<f2", "<f4", "<f8", ">f4", "<i8", "|u1", ">i2"])


@given(DTYPES.flatmap(lambda d: arrays_of.arrays(d, SHAPES)), st.booleans())
def test_numbers_are_what_flower_reads(array: np.ndarray, turned: bool) -> None:
    packed = Array(np.asfortranarray(array) if turned else array)
    np.testing.assert_array_equal(numbers(packed), packed.numpy())


@given(st.integers(0, 200), st.binary(max_size=4), st.integers(0, 60))
def test_changed_bytes_are_numbers_of_the_same_size_or_refused(at: int, put: bytes, cut: int) -> None:
    packed = Array(np.arange(12, dtype=np.float32).reshape(3, 4))
    data = (packed.data[:at] + put + packed.data[at + len(put) :])[: len(packed.data) - cut]
    try:
        found = numbers(Array("float32", (3, 4), "numpy.ndarray", data))
    except ValueError:
        return
    assert found.nbytes <= len(data)


def test_a_model_keeps_its_names_types_and_buffers() -> None:
    given_arrays = {
        "conv.weight": np.ones((2, 3), np.float32),
        "bn.running_mean": np.full(2, 5, np.float32),
        "bn.num_batches_tracked": np.array(7, np.int64),
        "head": np.full(4, 0.5, np.float64),
    }
    record = ArrayRecord({name: Array(array) for name, array in given_arrays.items()})
    model = array_layout(record)
    assert [(f.name, f.trained, f.integer) for f in model.layout.fields] == [
        ("conv.weight", True, False),
        ("bn.running_mean", False, False),
        ("bn.num_batches_tracked", False, True),
        ("head", True, False),
    ]
    back = model.arrays(model.flatten(record))
    for name, array in given_arrays.items():
        assert back[name].numpy().dtype == array.dtype
        np.testing.assert_array_equal(back[name].numpy(), array)
    assert not array_layout(record, buffers=["head", "bn.num_batches_tracked"]).layout.fields[3].trained


@given(DTYPES.flatmap(lambda d: arrays_of.arrays(d, SHAPES)), st.booleans(), st.integers(0, 99))
def test_a_difference_is_the_flat_vector_minus_the_start(array: np.ndarray, turned: bool, seed: int) -> None:
    record = ArrayRecord({"a": Array(np.asfortranarray(array) if turned else array)})
    model = array_layout(record)
    start = np.random.default_rng(seed).standard_normal(array.size).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = model.flatten(record) - start
    found = model.difference(record, start, np.full_like(start, 7))
    np.testing.assert_array_equal(found, expected)


def test_room_comes_back_after_the_next_round_and_not_before() -> None:
    rooms = UpdateBuffers()
    first, second, third = (rooms.take(3, 5) for _ in range(3))
    assert not np.shares_memory(first, second)
    assert np.shares_memory(first, third)
    assert rooms.take(4, 5).shape == (4, 5)
    assert rooms.take(2, 5).shape == (2, 5)
    assert rooms.take(2, 6).shape == (2, 6)


@pytest.mark.parametrize(
    ("arrays", "buffers", "told"),
    [
        ({}, None, "empty"),
        ({"a": np.zeros(2, np.float32)}, ["b"], "buffer 'b'"),
        ({"a": np.zeros(2, np.int64)}, [], "cannot be trained"),
        ({"a": np.zeros(2, np.bool_)}, None, "floats and integers"),
    ],
)
def test_what_is_no_model_is_refused(arrays, buffers, told) -> None:
    record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    with pytest.raises(ConfigError, match=told):
        array_layout(record, buffers=buffers)


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 9)), min_size=1, max_size=9))
def test_the_weighted_median_is_the_median_of_the_repeated(values) -> None:
    repeated = sorted(v for v, n in values for _ in range(n))
    assert weighted_median(values) == repeated[(len(repeated) - 1) // 2]


def test_divergence_is_the_mean_over_examples() -> None:
    rng = np.random.default_rng(0)
    p, q = (rng.dirichlet(np.ones(5), size=7) for _ in range(2))
    naive = np.mean(
        [sum(a * np.log(a / b) for a, b in zip(x, y, strict=True)) for x, y in zip(p, q, strict=True)]
    )
    assert divergence(p.reshape(-1), q.reshape(-1)) == pytest.approx(naive)
    with pytest.raises(ConfigError, match="probabilities"):
        divergence(p.reshape(-1), q[:3].reshape(-1))
