"""Passes the rows of a matrix to a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_size_t, c_void_p

import numpy as np
from numpy.typing import NDArray

from fedcrab.native import address


def plain_rows(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the matrix with the numbers of each row side by side; a copy only if they are not."""
    plain = matrix.dtype == np.float32 and matrix.dtype.isnative and matrix.strides[1] == matrix.itemsize
    return matrix if plain else np.ascontiguousarray(matrix, np.float32)


def rows_at(matrix: NDArray[np.generic]) -> tuple[c_void_p, c_size_t, c_size_t]:
    """Return where a matrix is, how many rows it has, and how many numbers are from one to the next."""
    return address(matrix), c_size_t(len(matrix)), c_size_t(matrix.strides[0] // matrix.itemsize)


def row_places(rows: Sequence[NDArray[np.floating]] | NDArray[np.floating]) -> NDArray[np.uintp] | None:
    """Return where each row is in memory; None unless all are float32 numbers side by side."""
    if not isinstance(rows, np.ndarray):
        plain = all(_is_plain(row) for row in rows)
        return np.array([row.ctypes.data for row in rows], np.uintp) if plain else None
    if not len(rows) or not _is_plain(rows[0]):
        return None
    return (rows.ctypes.data + np.arange(len(rows)) * rows.strides[0]).astype(np.uintp)


def _is_plain(row: NDArray[np.floating]) -> bool:
    flags = row.flags
    return row.dtype == np.float32 and row.dtype.isnative and flags.c_contiguous and flags.aligned
