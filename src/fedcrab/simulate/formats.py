"""Readers of the two canonical image formats, IDX and CIFAR binary, with bounds checked first.

A file may be truncated or hostile: nothing is allocated on the word of a header alone, and whatever
is wrong becomes one sentence that names the file.
"""

from __future__ import annotations

import gzip
import zlib
from io import BufferedReader
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError

LARGEST = 1 << 28  # bytes of one decompressed file; MNIST's largest has 47 million
UNSIGNED_BYTE = 0x08
CIFAR_RECORD = 1 + 3 * 32 * 32
CIFAR_RECORDS = 10_000


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """The array of an IDX file of unsigned bytes, gzipped if its name ends in ``.gz``."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _idx(file, path, dimensions)
    except (OSError, EOFError, zlib.error) as problem:
        raise ConfigError(f"{path}: cannot be read ({problem}); fetch the file again") from problem


def _idx(file: gzip.GzipFile | BufferedReader, path: Path, dimensions: int) -> NDArray[np.uint8]:
    head = file.read(4 + 4 * dimensions)
    if len(head) != 4 + 4 * dimensions or head[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise ConfigError(
            f"{path}: not an IDX file of unsigned bytes in {dimensions} dimensions; fetch the file again"
        )
    shape = tuple(int(n) for n in np.frombuffer(head, ">u4", offset=4))
    size = prod(shape)
    if not 0 < size <= LARGEST:
        raise ConfigError(f"{path}: its header claims shape {shape}, which no data set here has")
    body = file.read(size + 1)  # one more than it should have, to see what is too long
    if len(body) != size:
        found = f"{len(body)}" if len(body) < size else f"more than {size}"
        raise ConfigError(f"{path}: shape {shape} needs {size} bytes, found {found}; fetch the file again")
    return np.frombuffer(body, np.uint8).reshape(shape)


def read_cifar(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 3, 32, 32) and labels of one CIFAR-10 binary batch."""
    try:
        size = path.stat().st_size
        if size == 0 or size % CIFAR_RECORD or size > CIFAR_RECORD * CIFAR_RECORDS:
            raise ConfigError(
                f"{path}: a CIFAR-10 batch has up to {CIFAR_RECORDS} records of {CIFAR_RECORD} bytes, "
                f"this file has {size} bytes; fetch it again"
            )
        records = np.fromfile(path, np.uint8).reshape(-1, CIFAR_RECORD)
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read ({problem}); fetch the file again") from problem
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]
