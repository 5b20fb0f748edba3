"""Several seeds: mean and spread, and whether a difference is more than noise.

Two methods are compared by a paired t-test: they recovered from the same trainings, seed by seed, so that
what a seed makes easy or hard for both cancels. With d the differences over n common seeds,

    t = mean(d) / (sd(d) / √n)   against Student's t with n − 1 degrees of freedom, two-sided.

It assumes that differences are roughly normal, which few seeds cannot show, and with n = 3 it finds only what
is large beside its spread (|t| > 4.3). Many comparisons find something by chance: the p-values of one table
are corrected by Holm's method (Holm, Scandinavian Journal of Statistics 1979).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TypeVar

LEVEL = 0.05
FEWEST = 3  # seeds for a test
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds; the deviation is None where there is one seed."""

    mean: float
    deviation: float | None
    count: int


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and sample standard deviation; None where there is no value."""
    if not values:
        return None
    return Spread(mean(values), stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True, slots=True)
class Difference:
    """How two methods differ over the seeds they share."""

    mean: float
    count: int
    p: float | None  # None where it cannot be told


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Ours less theirs, seed by seed; None where no seed is shared."""
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if not differences:
        return None
    return Difference(mean(differences), len(differences), p_value(differences))


def p_value(differences: Sequence[float]) -> float | None:
    """The two-sided p of a mean of zero; None where it cannot be told.

    Fewer than three seeds tell nothing, nor do differences that are all alike: that is rounding or chance.
    """
    largest = max((abs(d) for d in differences), default=0.0)
    if len(differences) < FEWEST or stdev(differences) <= 1e-9 * largest:
        return None
    from scipy.stats import t as student

    t = mean(differences) / (stdev(differences) / math.sqrt(len(differences)))
    return float(2 * student.sf(abs(t), len(differences) - 1))


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Each p corrected for how many there are: the smallest times n, the next times n − 1, never falling."""
    corrected, least = dict[Name, float](), 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[name]))
        corrected[name] = least
    return corrected
