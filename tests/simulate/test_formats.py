"""Files from strangers: read whole, or refused in one sentence."""

import contextlib
import gzip
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcrab.errors import ConfigError
from fedcrab.simulate.data import CIFAR_RECORD, read_cifar, read_idx


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("name", ["images.gz", "images"])
def test_idx_round_trip(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(idx(IMAGES)) if name.endswith("gz") else idx(IMAGES))
    assert np.array_equal(read_idx(path, dimensions=3), IMAGES)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not an IDX file"),
        (idx(IMAGES)[:10], "not an IDX file"),
        (idx(IMAGES[0]), "not an IDX file"),
        (b"\0\0\x0d\3" + idx(IMAGES)[4:], "not an IDX file"),
        (struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 9), "gives shape"),
        (struct.pack(">HBB3I", 0, 8, 3, 0, 3, 4), "gives shape"),
        (idx(IMAGES)[:-1], "needs 24 bytes, found 23"),
        (idx(IMAGES) + b"x", "more than 24"),
    ],
)
def test_a_wrong_idx_file_is_refused(tmp_path, content, says):
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=says) as caught:
        read_idx(path, dimensions=3)
    assert str(path) in str(caught.value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.integers(0, 60))
def test_a_damaged_gzip_file_is_an_array_or_one_sentence(tmp_path, noise, place):
    whole = gzip.compress(idx(IMAGES))
    path = tmp_path / "images.gz"
    path.write_bytes(whole[:place] + noise)
    with contextlib.suppress(ConfigError):
        assert np.array_equal(read_idx(path, dimensions=3), IMAGES)


def test_a_bomb_is_not_unpacked_further_than_its_header_says(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(IMAGES) + bytes(50_000_000)))
    with pytest.raises(ConfigError, match="more than 24"):
        read_idx(path, dimensions=3)


def test_cifar_round_trip(tmp_path):
    records = np.random.default_rng(0).integers(0, 256, (5, CIFAR_RECORD)).astype(np.uint8)
    path = tmp_path / "batch.bin"
    records.tofile(path)
    x, y = read_cifar(path)
    assert np.array_equal(x.reshape(5, -1), records[:, 1:])
    assert np.array_equal(y, records[:, 0])


@pytest.mark.parametrize("size", [0, 1, CIFAR_RECORD + 1, CIFAR_RECORD * 10_001])
def test_a_cifar_file_of_wrong_size_is_refused(tmp_path, size):
    path = tmp_path / "batch.bin"
    with path.open("wb") as file:
        file.truncate(size)
    with pytest.raises(ConfigError, match=f"has {size} bytes"):
        read_cifar(path)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_idx(tmp_path / "no.gz", dimensions=1)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_cifar(tmp_path / "no.bin")
