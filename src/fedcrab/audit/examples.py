"""Misbehaviour that an operator brings: a file FILE.npz with the arrays ``x`` and ``y``.

x   (examples, *shape), numbers, as the model takes them
y   (examples,), integers: for each example the label that the model gives and should not give

From Python: ``numpy.savez("these.npz", x=images, y=labels)``.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedcrab.audit.flat_model import Images, Labels
from fedcrab.errors import ConfigError

LARGEST = 2**28  # bytes of one array, unpacked
KINDS = "fiub"


def read_examples(path: Path, *, shape: tuple[int, ...], classes: int) -> tuple[Images, Labels]:
    """The examples and labels of a file, checked; nothing is unpickled, no array above LARGEST is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            x, y = (_array(archive, path, name) for name in ("x", "y"))
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ConfigError(f"{path}: not a readable .npz file with arrays x and y ({error})") from error
    if x.shape[1:] != shape or y.shape != x.shape[:1] or not len(x):
        raise ConfigError(
            f"{path}: needs x of shape (examples, {', '.join(map(str, shape))}) and one label y for each, "
            f"got x {x.shape} and y {y.shape}"
        )
    if y.dtype.kind not in "iu" or np.min(y) < 0 or np.max(y) >= classes:
        raise ConfigError(f"{path}: y must be integers from 0 to {classes - 1}")
    values = x.astype(np.float32)
    if not np.isfinite(values).all():
        raise ConfigError(f"{path}: x has numbers that are not finite")
    return values, y.astype(np.int64)


def _array(archive: zipfile.ZipFile, path: Path, name: str) -> NDArray[np.generic]:
    if f"{name}.npy" not in archive.namelist():
        raise ConfigError(f"{path}: has no array {name!r}; numpy.savez(FILE, x=images, y=labels) writes one")
    held = archive.getinfo(f"{name}.npy").file_size
    with archive.open(f"{name}.npy") as member:
        _check_header(member, path, name, held)
    with archive.open(f"{name}.npy") as member:
        return np.asarray(npy.read_array(member, allow_pickle=False))


def _check_header(member: IO[bytes], path: Path, name: str, held: int) -> None:
    """Refuse what is too large, or not plain numbers, before anything is allocated for it."""
    try:
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, _, dtype = readers[npy.read_magic(member)](member)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{path}: array {name!r} is not in numpy's format") from error
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if dtype.kind not in KINDS or min(shape, default=1) < 0 or not 0 <= size <= min(held, LARGEST):
        raise ConfigError(
            f"{path}: array {name!r} is {dtype} of shape {shape}; it must be whole, of plain numbers, "
            f"and of at most {LARGEST} bytes"
        )
