"""Data sets: their shapes and ranges, the probe set, and arrays that cannot be one."""

import os

import numpy as np
import pytest

from fedcrab.errors import ConfigError
from fedcrab.simulate.data import from_arrays, hold_out, load_dataset, synthetic

needs_files = pytest.mark.skipif(
    not os.environ.get("FEDCRAB_DATA"), reason="set FEDCRAB_DATA to a folder with mnist/, fashion-mnist/, ..."
)


def test_digits_need_no_network_and_are_the_same_each_time():
    first, second = load_dataset("digits"), load_dataset("digits")
    assert first.train_x.shape == (1437, 1, 8, 8)
    assert first.test_x.shape == (360, 1, 8, 8)
    assert (first.train_x.min(), first.train_x.max()) == (0, 1)
    assert np.array_equal(first.train_x, second.train_x)
    assert np.array_equal(np.unique(first.test_y), np.arange(10))


@needs_files
@pytest.mark.parametrize(
    ("name", "train", "shape"),
    [
        ("mnist", 60000, (1, 28, 28)),
        ("fashion-mnist", 60000, (1, 28, 28)),
        ("cifar10", 50000, (3, 32, 32)),
    ],
)
def test_image_sets(name, train, shape):
    dataset = load_dataset(name)
    assert dataset.train_x.shape == (train, *shape)
    assert dataset.test_x.shape == (10000, *shape)
    assert (dataset.train_x.min(), dataset.train_x.max()) == (0, 1)
    assert np.array_equal(np.bincount(dataset.train_y) > 4000, [True] * 10)


def test_synthetic_classes_can_be_told_apart_by_a_line():
    dataset = synthetic(features=30, classes=3, examples=3000, seed=4)
    means = np.array([dataset.train_x[dataset.train_y == k].mean(0) for k in range(3)])
    nearest = ((dataset.test_x[:, None] - means) ** 2).sum(-1).argmin(1)
    assert np.mean(nearest == dataset.test_y) > 0.6
    assert np.linalg.norm(dataset.train_x, axis=1).max() < 3


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ConfigError, match="there are digits, mnist"):
        load_dataset("mnits")


def test_own_arrays():
    dataset = from_arrays(np.ones((4, 2)), [0, 1, 2, 1], np.zeros((1, 2)), [3])
    assert (dataset.classes, dataset.shape, dataset.train_x.dtype) == (4, (2,), np.float32)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        (([1.0, 2.0], [0, 1], [1.0], [0]), "must be"),
        ((np.ones((3, 2)), [0, 1], np.ones((1, 2)), [0]), "one label per"),
        ((np.ones((2, 2)), [0, 1], np.ones((1, 3)), [0]), "shape"),
        ((np.ones((2, 2)), [0, -1], np.ones((1, 2)), [0]), "labels must be 0 to"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, says):
    with pytest.raises(ConfigError, match=says):
        from_arrays(*arrays)


def test_the_probe_set_is_held_out_of_the_rest():
    dataset = synthetic(examples=100)
    rest, x, y = hold_out(dataset, probe=30, seed=1)
    assert (len(x), len(y), len(rest.train_y)) == (30, 30, 50)
    both = np.concatenate([x, rest.train_x])
    assert np.array_equal(np.unique(both, axis=0), np.unique(dataset.train_x, axis=0))
    assert np.array_equal(hold_out(dataset, probe=30, seed=1)[1], x)
    assert not np.array_equal(hold_out(dataset, probe=30, seed=2)[1], x)


@pytest.mark.parametrize("probe", [0, 80, -1])
def test_a_probe_set_leaves_something_to_train_on(probe):
    with pytest.raises(ConfigError, match="probe must be 1 to 79"):
        hold_out(synthetic(examples=100), probe=probe, seed=0)
