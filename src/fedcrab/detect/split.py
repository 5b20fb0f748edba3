"""Whether clients fall into two groups more clearly than those of one group would.

For numbers x, one a client, and a division into two groups, the separation is the difference of the means
over the deviation inside the groups, n - 2 degrees of freedom:

    T = |mean - mean'| / √(Σ squares inside / (n - 2))

It is judged beside the best cut of n numbers of *one* group at the same place: Student's t with 5 degrees of
freedom, which has outliers, and uniform numbers, which have none and fall apart in the middle. q_k is what
the cut that leaves k numbers on one side exceeds in one of 200 such samples, the worst of both kinds and
both sides. The weight of a division is √Σ (T / q_k)² over all signals: it is clear in one, or fairly clear
in several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedcrab.seeds import rng_for
from fedcrab.vectors import Matrix64

FEWEST = 4  # clients, below which there are no two groups and a deviation inside them
RARE, DEGREES = 0.005, 5
CUTS = 2  # of each signal, the clearest first

Group = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Division:
    """Two groups of clients, and how clearly they differ."""

    group: Group  # the smaller one, at first
    weight: float
    signals: Mapping[str, float]  # T / q_k of each, with the sign of the group's difference to the others

    def other_side(self) -> Division:
        """The same division, seen from the other group."""
        return Division(~self.group, self.weight, {name: -s for name, s in self.signals.items()})


def divide(signals: Mapping[str, Matrix64], floors: Mapping[str, float], *, most: int) -> Division | None:
    """The weightiest division that some signal cuts, its group of at most ``most``; None where there is none.

    A signal whose means differ by less than its floor says nothing: groups may be clear and yet the same for
    all that matters.
    """
    known = {name: x for name, x in signals.items() if np.isfinite(x).all() and len(x) >= FEWEST}
    found = (weigh(group, known, floors) for x in known.values() for group in cuts(x) if group.sum() <= most)
    return max(found, key=lambda division: division.weight, default=None)


def cuts(x: Matrix64) -> Iterator[Group]:
    """The smaller sides of the clearest cuts of these numbers."""
    order, n = np.argsort(x, kind="stable"), len(x)
    clear = separations(x[order][None])[0] / usual(n)
    for cut in np.argsort(-clear, kind="stable")[:CUTS].tolist():
        above = np.zeros(n, bool)
        above[order[cut + 1 :]] = True
        yield above if 2 * above.sum() <= n else ~above


def weigh(group: Group, signals: Mapping[str, Matrix64], floors: Mapping[str, float]) -> Division:
    """How clearly this group differs from the others."""
    strengths = {}
    for name, x in signals.items():
        difference = float(x[group].mean() - x[~group].mean())
        said = abs(difference) >= floors[name]
        strengths[name] = difference / _inside(x, group) / usual(len(x))[group.sum() - 1] if said else 0.0
    return Division(group, float(np.sqrt(sum(s**2 for s in strengths.values()))), strengths)


def _inside(x: Matrix64, group: Group) -> float:
    """The deviation inside the groups; never so little that rounding decides."""
    squares = sum(float(np.sum((x[side] - x[side].mean()) ** 2)) for side in (group, ~group))
    return float(np.sqrt(max(squares / (len(x) - 2), 1e-12 * float(np.mean(x**2)), 1e-300)))


def separations(rows: Matrix64) -> Matrix64:
    """T of every cut of each row of sorted numbers."""
    n = rows.shape[1]
    k = np.arange(1, n)
    rows = rows - rows.mean(axis=1, keepdims=True)
    sums, squares = np.cumsum(rows, axis=1)[:, :-1], np.sum(rows**2, axis=1, keepdims=True)
    below, above = sums / k, -sums / (n - k)
    inside = squares - k * below**2 - (n - k) * above**2
    return np.asarray((above - below) / np.sqrt(np.maximum(inside / (n - 2), 1e-12 * squares + 1e-300)))


@lru_cache(maxsize=64)
def usual(n: int) -> Matrix64:
    """q_k of n numbers of one group, for k from 1 to n - 1."""
    draws, rng = max(1000, 80_000 // n), rng_for(0, "one group", n)
    kinds = rng.standard_t(DEGREES, size=(draws, n)), rng.random((draws, n))
    rare = [np.quantile(separations(np.sort(kind, axis=1)), 1 - RARE, axis=0) for kind in kinds]
    worst = np.max(rare, axis=0)
    return np.asarray(np.maximum(worst, worst[::-1]))
