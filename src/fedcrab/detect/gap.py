"""How many groups numbers fall into: exact k-means on a line, and the gap statistic.

    Gap(k) = mean log W_k of uniform numbers - log W_k,   s_k = deviation of the former · √(1 + 1/B)

W_k the sum of squares inside k groups. There are as many groups as the smallest k with
Gap(k) ≥ Gap(k+1) - s_{k+1}.
Tibshirani, Walther, Hastie, "Estimating the number of clusters in a data set via the gap statistic", 2001.
Departs from it: k-means of numbers on a line is solved exactly, so that no start is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrab.seeds import rng_for
from fedcrab.vectors import Matrix64

SAMPLES, MOST_GROUPS = 20, 10
LEAST = 1e-12  # of the squares: more groups than different numbers have nothing left inside


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gap(k) and s_k, for k from 1 on."""

    gap: Matrix64
    error: Matrix64

    @property
    def groups(self) -> int:
        """How many groups there are."""
        enough = self.gap[:-1] >= self.gap[1:] - self.error[1:]
        return int(np.argmax(enough)) + 1 if enough.any() else len(self.gap)

    @property
    def excess(self) -> float:
        """By how much two groups fit better than one, beyond the error; above 0 they are more than one."""
        return float(self.gap[1] - self.error[1] - self.gap[0])


def gaps(values: Matrix64) -> Gaps:
    """The gap statistic of two numbers or more."""
    low, spread = values.min(), np.ptp(values)
    scaled = (values - low) / spread if spread > 0 else np.zeros(len(values))
    most, rng = min(MOST_GROUPS, len(values)), rng_for(0, "gap statistic", len(values))
    drawn = np.array([_log_inside(rng.random(len(values)), most) for _ in range(SAMPLES)])
    gap = drawn.mean(axis=0) - _log_inside(scaled, most)
    return Gaps(gap, drawn.std(axis=0) * np.sqrt(1 + 1 / SAMPLES))


def _log_inside(values: Matrix64, most: int) -> Matrix64:
    """Log W_k for k from 1 to ``most``."""
    inside, _ = _best(np.sort(values), most)
    return np.asarray(np.log(np.maximum(inside[:, -1], LEAST)))


def two_means(values: Matrix64) -> NDArray[np.bool_]:
    """Which of two numbers or more are in the upper one of the two groups with the least squares inside."""
    order = np.argsort(values, kind="stable")
    _, starts = _best(values[order], 2)
    upper = np.zeros(len(values), bool)
    upper[order[starts[1, -1] :]] = True
    return upper


def _best(ordered: Matrix64, most: int) -> tuple[Matrix64, NDArray[np.intp]]:
    """The least squares inside k groups of the first j sorted numbers, and where the last group starts."""
    costs = _costs(ordered)
    inside, starts = [costs[0]], [np.zeros(len(ordered), np.intp)]
    for _ in range(1, most):
        before = np.concatenate([[np.inf], inside[-1][:-1]])  # of all numbers before the last group
        totals = before[:, None] + costs
        starts.append(np.argmin(totals, axis=0))
        inside.append(totals.min(axis=0))
    return np.array(inside), np.array(starts)


def _costs(ordered: Matrix64) -> Matrix64:
    """The squares inside the group from number i to number j; infinite where there is none."""
    centred = ordered - ordered.mean()
    sums, squares = (np.concatenate([[0.0], np.cumsum(x)]) for x in (centred, centred**2))
    n = np.arange(1, len(ordered) + 1)[None] - np.arange(len(ordered))[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = squares[None, 1:] - squares[:-1, None] - (sums[None, 1:] - sums[:-1, None]) ** 2 / n
    return np.where(n > 0, np.maximum(inside, 0.0), np.inf)
