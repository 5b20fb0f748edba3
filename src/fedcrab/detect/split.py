"""Whether clients fall into two groups more clearly than those of one group would.

For numbers x, one a client, and a division into two groups, the separation is the difference of the means
over the deviation inside the groups, n - 2 degrees of freedom:

    T = |mean - mean'| / √(Σ squares inside / (n - 2))

It is judged beside the best cut of n numbers of *one* group at the same place: Student's t with 5 degrees of
freedom, which has outliers, and uniform numbers, which have none and fall apart in the middle. q_k is what
the cut that leaves k numbers on one side exceeds in one of 200 such samples, the worst of both kinds and
both sides. The weight of a division is √Σ (T / q_k)² over all signals: it is clear in one, or fairly clear
in several.

How many groups numbers fall into: exact k-means on a line, and the gap statistic.

    Gap(k) = mean log W_k of uniform numbers - log W_k,   s_k = deviation of the former · √(1 + 1/B)

W_k the sum of squares inside k groups. There are as many groups as the smallest k with
Gap(k) ≥ Gap(k+1) - s_{k+1}.
Tibshirani, Walther, Hastie, "Estimating the number of clusters in a data set via the gap statistic", 2001.
Departs from it: k-means of numbers on a line is solved exactly, so that no start is drawn.

Which of two groups of about the same size is the honest one: the one along which the loss falls.

To first order a round lowers the server's loss by κ·⟨h, G⟩, h the honest mean update and G the step taken,
less a part that grows with ‖G‖². With G = w_a·a + w_b·b both groups' shares of it come from

    F(M_t) - F(M_{t+1})  ≈  α·⟨a_t, G_t⟩ + β·⟨b_t, G_t⟩

fitted over the rounds: the honest group has the larger coefficient. All of it is in the ledger. The loss
must be the server's own: attackers who report losses could turn this around.
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


RIDGE = 1e-3  # of the larger regressor: a group across which nothing moves has a coefficient of 0
WORST_CONDITION = 1e12


def lowers_the_loss(history: History, group: Collection[ClientId]) -> float:
    """How clearly it is the group (above 0), or the others, along which the loss falls: t of α - β."""
    falls, moves = [], []
    before = history.charter.initial_loss
    for entry in history.rounds:
        move = _along(entry, group)
        if move is not None and isfinite(before) and isfinite(entry.loss):
            falls.append(before - entry.loss)
            moves.append(move)
        before = entry.loss
    return _t(np.array(moves), np.array(falls)) if len(falls) > 2 else 0.0


def _along(entry: RoundRecord, group: Collection[ClientId]) -> tuple[float, float] | None:
    """⟨a, G⟩ and ⟨b, G⟩ of a round, G the weighted mean of all; None where one side is missing."""
    inside = np.array([client in group for client in entry.clients], bool)
    if inside.all() or not inside.any():
        return None
    points = range(len(entry.clients))
    step = entry.coordinates.combine(points, entry.examples / entry.examples.sum())
    sides = (np.where(side, entry.examples, 0.0) for side in (inside, ~inside))
    first, second = (entry.coordinates.combine(points, side / side.sum()) @ step for side in sides)
    return float(first), float(second)


def _t(moves: Matrix64, falls: Matrix64) -> float:
    """The difference of the coefficients over its error, by least squares with a ridge."""
    scale = float(np.abs(moves).max()) or 1.0
    moves = moves / scale
    products = moves.T @ moves
    ridged = products + RIDGE * float(np.diagonal(products).max()) * np.eye(2)
    if not np.isfinite(ridged).all() or np.linalg.cond(ridged) > WORST_CONDITION:
        return 0.0
    coefficients = np.linalg.solve(ridged, moves.T @ falls)
    left = falls - moves @ coefficients
    variance = max(float(left @ left) / (len(falls) - 2), 1e-12 * float(falls @ falls))
    contrast = np.array([1.0, -1.0])
    spread = np.linalg.solve(ridged, contrast)
    error = np.sqrt(variance * spread @ products @ spread)
    return float(contrast @ coefficients / error) if error > 0 else 0.0


FEWEST = 4  # clients, below which there are no two groups and a deviation inside them
RARE, DEGREES = 0.005, 5
CUTS = 2  # of each signal, the clearest first
BLOCK = 2**18  # numbers drawn at a time
Group = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Split:
    """Two groups of clients, and how clearly they differ."""

    group: Group  # the smaller one, at first
    weight: float
    signals: Mapping[str, float]  # T / q_k of each, with the sign of the group's difference to the others

    def other_side(self) -> Split:
        """The same division, seen from the other group."""
        return Split(~self.group, self.weight, {name: -s for name, s in self.signals.items()})


def divide(signals: Mapping[str, Matrix64], floors: Mapping[str, float], *, most: int) -> Split | None:
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


def weigh(group: Group, signals: Mapping[str, Matrix64], floors: Mapping[str, float]) -> Split:
    """How clearly this group differs from the others."""
    strengths = {}
    for name, x in signals.items():
        difference = float(x[group].mean() - x[~group].mean())
        said = abs(difference) >= floors[name]
        strengths[name] = difference / _inside(x, group) / usual(len(x))[group.sum() - 1] if said else 0.0
    return Split(group, float(np.sqrt(sum(s**2 for s in strengths.values()))), strengths)


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
    kinds = (lambda rows: rng.standard_t(DEGREES, size=(rows, n))), (lambda rows: rng.random((rows, n)))
    worst = np.max([_exceeded_rarely(kind, draws, n) for kind in kinds], axis=0)
    return np.asarray(np.maximum(worst, worst[::-1]))


def _exceeded_rarely(draw: Callable[[int], Matrix64], draws: int, n: int) -> Matrix64:
    """What the separation at each cut exceeds in a share RARE of so many samples: its quantile.

    Only the largest are held, so that thousands of numbers take no more memory than the samples of a block.
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
