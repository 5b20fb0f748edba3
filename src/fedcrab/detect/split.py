"""Two groups of clients: whether there are two, and which of them is honest.

**Whether.** For numbers x, one per client, and a split into two groups, the separation is the difference of
the means over the deviation within the groups, with n - 2 degrees of freedom:

    T = |mean - mean'| / √(Σ squares within / (n - 2))

It is compared with the best cut of n numbers from *one* group at the same place. These numbers are drawn
from Student's t with 5 degrees of freedom, which has outliers, and from the uniform distribution, which has
none and splits in the middle. A cut that leaves k numbers on one side exceeds q_k in one of 200 such samples
(the larger q_k of both distributions and both sides). The weight of a split is √Σ (T / q_k)² over all
signals. So a split is clear if one signal shows it clearly, or several show it fairly clearly.

**Which.** Of two groups of similar size, the honest one is the one along which the loss falls. To first
order, a round lowers the server's loss by κ·⟨h, G⟩, where h is the honest mean update and G the step, minus
a term that grows with ‖G‖². With the mean updates a and b of the two groups, least squares over the rounds

    F(M_t) - F(M_{t+1})  ≈  α·⟨a_t, G_t⟩ + β·⟨b_t, G_t⟩

gives the honest group the larger coefficient. The ledger contains all of these numbers. The loss must be
measured by the server: attackers who report losses could reverse the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import floor, isfinite

import numpy as np
from numpy.typing import NDArray

from fedcrab.history import History
from fedcrab.history.records import RoundRecord
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

FEWEST = 4  # clients; fewer do not form two groups with a deviation within them
RARE, DEGREES = 0.005, 5  # one of 200 samples; Student's t
CUTS = 2  # per signal: the clearest ones
BLOCK = 2**18  # numbers drawn at a time
RIDGE = 1e-3  # of the larger regressor: a group with ⟨·, G⟩ of almost 0 gets a coefficient of 0
WORST_CONDITION = 1e12
Group = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Split:
    """Two groups of clients, and how clearly they differ."""

    group: Group  # ``divide`` puts the smaller group here
    weight: float
    signals: Mapping[str, float]  # T / q_k of each signal; negative if the group's mean is the lower one

    def other_side(self) -> Split:
        """Return the same split with the other group as ``group``."""
        return Split(~self.group, self.weight, {name: -s for name, s in self.signals.items()})


def divide(signals: Mapping[str, Matrix64], floors: Mapping[str, float], *, most: int) -> Split | None:
    """Return the split with the largest weight whose group has at most ``most`` clients; None without any.

    ``signals`` has one number per client and signal. A signal is ignored if the means differ by less than
    its floor: a difference can be clear and still too small to matter.
    """
    known = {name: x for name, x in signals.items() if np.isfinite(x).all() and len(x) >= FEWEST}
    splits = (weigh(group, known, floors) for x in known.values() for group in cuts(x) if group.sum() <= most)
    return max(splits, key=lambda split: split.weight, default=None)


def cuts(x: Matrix64) -> Iterator[Group]:
    """Yield the smaller side of each of the clearest cuts of these numbers."""
    order, n = np.argsort(x, kind="stable"), len(x)
    clear = separations(x[order][None])[0] / usual(n)
    for cut in np.argsort(-clear, kind="stable")[:CUTS].tolist():
        above = np.zeros(n, bool)
        above[order[cut + 1 :]] = True
        yield above if 2 * above.sum() <= n else ~above


def weigh(group: Group, signals: Mapping[str, Matrix64], floors: Mapping[str, float]) -> Split:
    """Return the split into this group and the others, with its weight."""
    strengths = {}
    for name, x in signals.items():
        difference = float(x[group].mean() - x[~group].mean())
        large = abs(difference) >= floors[name]
        strengths[name] = difference / _within(x, group) / usual(len(x))[group.sum() - 1] if large else 0.0
    return Split(group, float(np.sqrt(sum(s**2 for s in strengths.values()))), strengths)


def _within(x: Matrix64, group: Group) -> float:
    """Return the deviation within the groups, at least as large as the rounding error."""
    squares = sum(float(np.sum((x[side] - x[side].mean()) ** 2)) for side in (group, ~group))
    return float(np.sqrt(max(squares / (len(x) - 2), 1e-12 * float(np.mean(x**2)), 1e-300)))


def separations(rows: Matrix64) -> Matrix64:
    """Return T of every cut of each row of sorted numbers."""
    n = rows.shape[1]
    k = np.arange(1, n)
    rows = rows - rows.mean(axis=1, keepdims=True)
    sums, squares = np.cumsum(rows, axis=1)[:, :-1], np.sum(rows**2, axis=1, keepdims=True)
    below, above = sums / k, -sums / (n - k)
    within = squares - k * below**2 - (n - k) * above**2
    return np.asarray((above - below) / np.sqrt(np.maximum(within / (n - 2), 1e-12 * squares + 1e-300)))


@lru_cache(maxsize=64)
def usual(n: int) -> Matrix64:
    """Return q_k for n numbers from one group, for k from 1 to n - 1."""
    draws, rng = max(1000, 80_000 // n), rng_for(0, "one group", n)
    kinds = (lambda rows: rng.standard_t(DEGREES, size=(rows, n))), (lambda rows: rng.random((rows, n)))
    worst = np.max([_quantiles(kind, draws, n) for kind in kinds], axis=0)
    return np.asarray(np.maximum(worst, worst[::-1]))


def _quantiles(draw: Callable[[int], Matrix64], draws: int, n: int) -> Matrix64:
    """Return the quantile 1 - RARE of the separation at each cut, over this many samples.

    Only the largest separations are held, so that the memory is that of one block of samples.
    """
    held = draws - floor((1 - RARE) * (draws - 1))
    largest, rows = np.full((0, n - 1), -np.inf), max(1, BLOCK // n)
    for done in range(0, draws, rows):
        found = separations(np.sort(draw(min(rows, draws - done)), axis=1))
        found = np.concatenate([largest, found])
        largest = found if len(found) <= held else np.partition(found, -held, axis=0)[-held:]
    share = (1 - RARE) * (draws - 1) % 1
    lowest = np.partition(largest, (0, 1), axis=0)[:2]
    return np.asarray(lowest[0] + share * (lowest[1] - lowest[0]))


def lowers_the_loss(history: History, group: Collection[ClientId]) -> float:
    """Return the t statistic of α - β: above 0 if the loss falls along the group, not along the others."""
    decreases, products = [], []
    before = history.charter.initial_loss
    for entry in history.rounds:
        product = _products_with_step(entry, group)
        if product is not None and isfinite(before) and isfinite(entry.loss):
            decreases.append(before - entry.loss)
            products.append(product)
        before = entry.loss
    return _t_statistic(np.array(products), np.array(decreases)) if len(decreases) > 2 else 0.0


def _products_with_step(entry: RoundRecord, group: Collection[ClientId]) -> tuple[float, float] | None:
    """Return ⟨a, G⟩ and ⟨b, G⟩ of a round, G the weighted mean of all updates; None if a group is absent."""
    member = np.array([client in group for client in entry.clients], bool)
    if member.all() or not member.any():
        return None
    points = range(len(entry.clients))
    step = entry.coordinates.combine(points, entry.examples / entry.examples.sum())
    weights = (np.where(side, entry.examples, 0.0) for side in (member, ~member))
    first, second = (entry.coordinates.combine(points, w / w.sum()) @ step for w in weights)
    return float(first), float(second)


def _t_statistic(regressors: Matrix64, decreases: Matrix64) -> float:
    """Return the difference of the two coefficients over its error, by ridge regression."""
    scale = float(np.abs(regressors).max()) or 1.0
    regressors = regressors / scale
    products = regressors.T @ regressors
    ridged = products + RIDGE * float(np.diagonal(products).max()) * np.eye(2)
    if not np.isfinite(ridged).all() or np.linalg.cond(ridged) > WORST_CONDITION:
        return 0.0
    coefficients = np.linalg.solve(ridged, regressors.T @ decreases)
    residuals = decreases - regressors @ coefficients
    variance = max(float(residuals @ residuals) / (len(decreases) - 2), 1e-12 * float(decreases @ decreases))
    contrast = np.array([1.0, -1.0])
    spread = np.linalg.solve(ridged, contrast)
    error = np.sqrt(variance * spread @ products @ spread)
    return float(contrast @ coefficients / error) if error > 0 else 0.0
