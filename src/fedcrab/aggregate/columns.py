"""Passes over a matrix of updates in stretches of columns.

A stretch fits the processor's cache in float64, so sums are exact enough and the whole is never copied.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedcrab.types import Vector

STRETCH = 1 << 18  # numbers at a time: 2 MB as float64


def stretches(matrix: NDArray[np.float32]) -> Iterator[slice]:
    """Slices that cover the columns."""
    width = max(1, STRETCH // max(1, len(matrix)))
    for start in range(0, matrix.shape[1], width):
        yield slice(start, min(start + width, matrix.shape[1]))


def sorted_stretches(matrix: NDArray[np.float32]) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """For each stretch its coordinates, one a row, the clients' values ascending."""
    for place in stretches(matrix):
        block = np.ascontiguousarray(matrix[:, place].T)
        if np.shares_memory(block, matrix):  # one column or one client: the transpose is no copy
            block = block.copy()
        block.sort(axis=1)
        yield place, block


def combination(coefficients: NDArray[np.float64], matrix: NDArray[np.float32]) -> Vector:
    """Σ a_c · u_c, summed in float64."""
    result = np.empty(matrix.shape[1], np.float32)
    for place in stretches(matrix):
        result[place] = coefficients @ matrix[:, place].astype(np.float64)
    return result


def squared_norms(matrix: NDArray[np.float32]) -> NDArray[np.float64]:
    """‖u_c‖² for each row."""
    result = np.zeros(len(matrix))
    for place in stretches(matrix):
        block = matrix[:, place].astype(np.float64)
        result += np.einsum("cd,cd->c", block, block)
    return result


def squared_distances(matrix: NDArray[np.float32]) -> NDArray[np.float64]:
    """‖u_c − u_c'‖² for each pair of rows.

    From differences, not from a Gram matrix: near-equal rows lose no digits, and a pair's distance has the
    same bits wherever its rows stand.
    """
    result = np.zeros((len(matrix), len(matrix)))
    for place in stretches(matrix):
        block = matrix[:, place].astype(np.float64)
        for i in range(len(block) - 1):
            difference = block[i + 1 :] - block[i]
            result[i, i + 1 :] += np.einsum("cd,cd->c", difference, difference)
    return result + result.T
