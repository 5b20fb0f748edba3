"""Examples of a misbehaviour, from the operator: a file FILE.npz with the arrays ``x`` and ``y``.

x   (examples, *shape), numbers: the input of the model
y   (examples,), integers: the label that the model gives to each example, and should not give

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

LARGEST = 2**28  # bytes of one array, uncompressed
KINDS = "fiub"


def read_examples(path: Path, *, shape: tuple[int, ...], classes: int) -> tuple[Images, Labels]:
    """Return the examples and labels of a file, for a model with this input ``shape`` and these classes.

    Nothing is unpickled, and no array above LARGEST bytes is read. Raises ConfigError if the file is not
    readable, or its arrays do not fit the model.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            x, y = (_array(archive, path, name) for name in ("x", "y"))
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ConfigError(f"{path}: not a readable .npz file with arrays x and y ({error})") from error
    if x.shape[1:] != shape or y.shape != x.shape[:1] or not len(x):
        raise ConfigError(
            f"{path}: needs x of shape (examples, {', '.join(map(str, shape))}) and one label y per example; "
            f"got x {x.shape} and y {y.shape}"
        )
    if y.dtype.kind not in "iu" or np.min(y) < 0 or np.max(y) >= classes:
        raise ConfigError(f"{path}: y must be integers from 0 to {classes - 1}")
    values = x.astype(np.float32)
    if not np.isfinite(values).all():
        raise ConfigError(f"{path}: x contains numbers that are not finite")
    return values, y.astype(np.int64)


def _array(archive: zipfile.ZipFile, path: Path, name: str) -> NDArray[np.generic]:
    if f"{name}.npy" not in archive.namelist():
        raise ConfigError(f"{path}: has no array {name!r}; numpy.savez(FILE, x=images, y=labels) writes one")
    stored = archive.getinfo(f"{name}.npy").file_size
    with archive.open(f"{name}.npy") as member:
        _check_header(member, path, name, stored)
    with archive.open(f"{name}.npy") as member:
        return np.asarray(npy.read_array(member, allow_pickle=False))


def _check_header(member: IO[bytes], path: Path, name: str, stored: int) -> None:
    """Refuse an array that is too large or not of plain numbers, before memory is allocated for it."""
    try:
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, _, dtype = readers[npy.read_magic(member)](member)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{path}: array {name!r} is not in numpy's format") from error
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if dtype.kind not in KINDS or min(shape, default=1) < 0 or not 0 <= size <= min(stored, LARGEST):
        raise ConfigError(
            f"{path}: array {name!r} is {dtype} of shape {shape}; it must be complete, contain plain numbers "
            f"and have at most {LARGEST} bytes"
        )
