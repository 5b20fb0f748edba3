"""The file that an operator brings is a stranger's file."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedcrab import ConfigError
from fedcrab.audit import examples, read_examples

SHAPE = (1, 2, 2)


def test_it_comes_back(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).random((3, 1, 2, 2)), np.array([0, 2, 1], np.uint8)
    np.savez_compressed(tmp_path / "e.npz", x=x, y=y)
    got_x, got_y = read_examples(tmp_path / "e.npz", shape=SHAPE, classes=3)
    np.testing.assert_array_equal(got_x, x.astype(np.float32))
    assert got_y.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        (np.zeros((2, 4)), np.zeros(2, int), "needs x of shape"),
        (np.zeros((2, 1, 2, 2)), np.zeros(3, int), "one label y per example"),
        (np.zeros((0, 1, 2, 2)), np.zeros(0, int), "needs x of shape"),
        (np.zeros((2, 1, 2, 2)), np.array([0, 3]), "integers from 0 to 2"),
        (np.zeros((2, 1, 2, 2)), np.array([0, -1]), "integers from 0 to 2"),
        (np.zeros((2, 1, 2, 2)), np.array([0.0, 1.0]), "integers from 0 to 2"),
        (np.full((2, 1, 2, 2), np.inf), np.zeros(2, int), "not finite"),
        (np.full((2, 1, 2, 2), 1e300), np.zeros(2, int), "not finite"),
        (np.zeros((2, 1, 2, 2), complex), np.zeros(2, int), "plain numbers"),
        (np.array([{}], object), np.zeros(1, int), "plain numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_what_is_wrong_is_said(tmp_path: Path, x: np.ndarray, y: np.ndarray, match: str) -> None:
    np.savez(tmp_path / "e.npz", x=x, y=y)
    with pytest.raises(ConfigError, match=match):
        read_examples(tmp_path / "e.npz", shape=SHAPE, classes=3)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.npz"
    for content in (b"", b"PK\x03\x04", b"hello" * 100):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"not a readable \.npz"):
            read_examples(path, shape=SHAPE, classes=3)
    with pytest.raises(ConfigError, match=r"not a readable \.npz"):
        read_examples(tmp_path / "none.npz", shape=SHAPE, classes=3)
    np.savez(path, x=np.zeros(3))
    with pytest.raises(ConfigError, match="has no array 'y'"):
        read_examples(path, shape=SHAPE, classes=3)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"not numpy at all")
        archive.writestr("y.npy", b"")
    with pytest.raises(ConfigError, match="not in numpy's format"):
        read_examples(path, shape=SHAPE, classes=3)


def test_a_huge_array_is_refused_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header that promises more than the file has, and a bomb that has what it promises."""
    path = tmp_path / "e.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }"
    header += b" " * (117 - len(header)) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(ConfigError, match="must be complete"):
        read_examples(path, shape=SHAPE, classes=3)
    monkeypatch.setattr(examples, "LARGEST", 1000)
    np.savez_compressed(path, x=np.zeros((1000, 1, 2, 2)), y=np.zeros(1000, int))
    with pytest.raises(ConfigError, match="at most 1000 bytes"):
        read_examples(path, shape=SHAPE, classes=3)
