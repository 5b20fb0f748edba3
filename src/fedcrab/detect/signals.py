"""What the geometry of the rounds tells of the clients: a few numbers for each, averaged over rounds.

Of each round, from the Gram matrix K_t of its updates:

    length      log ‖u_i‖
    outside     log of the length of u_i's part outside the span of all other updates of the round
    cosines     c_ij, between the updates of i and j
    nearness    log10 of ‖u_i - u_j‖ / √(‖u_i‖² + ‖u_j‖²), that of copies cut off at 1e-6

lengths and nearness against the median of the round, cosines against its mean, so that it does not matter
which rounds a client took part in. From their means over rounds, for any set of clients most of whom met:

    agreement   the mean of c_ij over the others of the set
    apart       the leading coordinate of the clients in the matrix of c_ij: two groups that agree within
                more than across lie at its two ends

Lengths grow with the number of examples; what follows from that (Theil and Sen's slope) is taken off.

The leading eigenvalue and eigenvector of a symmetric matrix, without all the others.

Lanczos's method with every new vector made orthogonal to all before it (Golub and Van Loan, "Matrix
Computations", 10.1 to 10.3). |β_k·s_k| is how far the pair found is from being one; where that does not
become small, and for small matrices, all pairs are computed.

What one round's Gram matrix says of every pair of its updates.

A round of a thousand clients has half a million pairs, so these are matrix products and a few passes over
them, without NaN: who sent nothing is left out before, and diagonals are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.history.records import RoundRecord
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

SMALL_EIGENVALUE = 200  # rows, up to which all pairs are as quick
STEPS, BETWEEN = 160, 20  # the most steps, and how many between two looks at the result
EXACT = 1e-10  # of the eigenvalue


def leading_pair(matrix: Matrix64) -> tuple[float, Matrix64]:
    """The largest eigenvalue and its vector, of length 1."""
    found = _by_lanczos(matrix) if len(matrix) > SMALL_EIGENVALUE else None
    if found is not None:
        return found
    values, vectors = np.linalg.eigh(matrix)
    return float(values[-1]), np.asarray(vectors[:, -1])


def _by_lanczos(matrix: Matrix64) -> tuple[float, Matrix64] | None:
    """The pair, where it is found within this many steps."""
    basis, diagonal, beside = np.zeros((STEPS + 1, len(matrix))), np.zeros(STEPS), np.zeros(STEPS)
    start = rng_for(0, "leading pair", len(matrix)).normal(size=len(matrix))
    basis[0] = start / np.linalg.norm(start)
    for step in range(STEPS):
        new = matrix @ basis[step]
        diagonal[step] = new @ basis[step]
        for _ in range(2):  # once is not enough where rounding has let old directions in again
            new -= basis[: step + 1].T @ (basis[: step + 1] @ new)
        beside[step] = np.linalg.norm(new)
        if (step + 1) % BETWEEN == 0 or not beside[step]:
            value, weights = _largest(diagonal[: step + 1], beside[:step])
            if beside[step] * abs(weights[-1]) <= EXACT * abs(value):
                vector = weights @ basis[: step + 1]
                return value, vector / np.linalg.norm(vector)
        if not beside[step]:
            return None
        basis[step + 1] = new / beside[step]
    return None


def _largest(diagonal: Matrix64, beside: Matrix64) -> tuple[float, Matrix64]:
    values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
    return float(values[-1]), np.asarray(vectors[:, -1])


CLOSEST = 1e-6  # a relative distance below this is that of copies, and all that float32 can tell
RIDGE = 1e-9  # on the correlations, so that those of copies can be inverted too
SMALL = 128  # rows of a matrix that are inverted at once


def directions_of(entry: RoundRecord) -> tuple[NDArray[np.intp], Matrix64]:
    """Which clients of a round sent anything, and the direction of each of their updates, of length 1."""
    rows = entry.coordinates.rows(range(len(entry.clients)))
    scale = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    there = np.flatnonzero((scale > 0) & (entry.norms > 0))
    return there, rows[there] / scale[there, None]


def cosines_of(directions: Matrix64) -> Matrix64:
    """The cosine of each pair."""
    cosines = directions @ directions.T
    np.clip(cosines, -1.0, 1.0, out=cosines)
    np.fill_diagonal(cosines, 0.0)
    return np.asarray(cosines)


def cosine_sums(directions: Matrix64) -> Matrix64:
    """The sum of each one's cosines with the others, Σ_j ⟨d_i, d_j⟩ - 1, without the matrix of all pairs."""
    return np.asarray(directions @ directions.sum(axis=0) - 1.0)


def beside_mean(cosines: Matrix64) -> Matrix64:
    """Less the mean of all pairs."""
    pairs = len(cosines) * (len(cosines) - 1)
    found = cosines - cosines.sum() / max(pairs, 1)
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def nearness_of(norms: Matrix64, cosines: Matrix64) -> Matrix64:
    """log10 of each pair's distance over both lengths, against the median of the round."""
    squares = norms**2
    found = np.multiply.outer(-2 * norms, norms)
    found /= np.add.outer(squares, squares)
    found *= cosines
    found += 1.0
    np.maximum(found, CLOSEST**2, out=found)
    np.log10(found, out=found)
    found *= 0.5
    found -= np.median(found[np.tri(len(found), k=-1, dtype=bool)]) if len(found) > 1 else 0.0
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def log_unexplained(cosines: Matrix64) -> Matrix64:
    """Log of the share of each update's length that no combination of the others gives.

    The diagonal of the inverse correlation matrix is 1 / (1 - R²).
    """
    if len(cosines) < 3:
        return np.full(len(cosines), np.nan)
    correlation = cosines.copy()
    np.fill_diagonal(correlation, 1 + RIDGE)
    return np.asarray(-0.5 * np.log(np.maximum(inverse_diagonal(correlation), 1.0)))


def inverse_diagonal(matrix: Matrix64) -> Matrix64:
    """The diagonal of the inverse of a symmetric matrix: with M = LLᵀ, the squares in the columns of L⁻¹."""
    try:
        inverse = _inverse_of_lower(np.asarray(np.linalg.cholesky(matrix), np.float64))
    except np.linalg.LinAlgError:
        return np.asarray(np.diagonal(np.linalg.inv(matrix)))
    return np.asarray(np.square(inverse, out=inverse).sum(axis=0))


def _inverse_of_lower(lower: Matrix64) -> Matrix64:
    """The inverse of a lower triangle: [[A, 0], [B, D]]⁻¹ = [[A⁻¹, 0], [-D⁻¹·B·A⁻¹, D⁻¹]]."""
    half = len(lower) // 2
    if len(lower) <= SMALL:
        return np.asarray(np.linalg.inv(lower), np.float64)
    inverse = np.zeros_like(lower)
    inverse[:half, :half] = first = _inverse_of_lower(lower[:half, :half])
    inverse[half:, half:] = second = _inverse_of_lower(lower[half:, half:])
    inverse[half:, :half] = -second @ (lower[half:, :half] @ first)
    return inverse


SLOPES = 300  # clients whose pairs tell how length grows with examples
MET = 0.5  # of all pairs must have met, or groups are those of the rounds that they met in
MOST_PAIRED = 2000  # clients of whom every pair is followed through the rounds


@dataclass(frozen=True, slots=True)
class Signals:
    """Means over rounds. NaN where a client, or a pair of them, took part in none."""

    examples: Matrix64  # log
    length: Matrix64
    outside: Matrix64  # NaN where rounds are sketched: the sketches of many clients span everything
    agreement: Matrix64  # with all of the round
    cosines: Matrix64  # (clients, clients), NaN on the diagonal; empty where there are too many clients
    nearness: Matrix64  # (clients, clients), NaN on the diagonal; empty too

    def among(self, some: NDArray[np.intp]) -> dict[str, Matrix64]:
        """The signals of these clients, judged among themselves."""
        found = {
            "length": _beside(self.length[some], self.examples[some]),
            "outside": _beside(self.outside[some], self.examples[some]),
        }
        cosines = self.cosines[np.ix_(some, some)] if self.cosines.size else self.cosines
        if not (cosines.size and np.isfinite(cosines).mean() > MET):
            return {**found, "agreement": self.agreement[some]}
        return {**found, "agreement": _row_means(cosines), "apart": leading(cosines)}


@dataclass(frozen=True, slots=True)
class SignalSums:
    """Sums over some rounds, and how many there were of each; those of other rounds can be added."""

    alone: Matrix64  # (sum and count, number, clients)
    pairs: Matrix64  # (cosine and nearness, clients, clients)
    met: Matrix64  # (clients, clients): in how many rounds

    def __add__(self, other: SignalSums) -> SignalSums:
        return SignalSums(self.alone + other.alone, self.pairs + other.pairs, self.met + other.met)

    def signals(self) -> Signals:
        """The means."""
        met = self.met.copy()
        np.fill_diagonal(met, 0)
        both = (_means(np.stack([total, met])) for total in self.pairs)
        return Signals(*_means(self.alone), *both)


def gather(entries: Sequence[RoundRecord], clients: Sequence[ClientId]) -> SignalSums:
    """The sums of these clients over these rounds, in one pass."""
    place = {client: i for i, client in enumerate(clients)}
    paired = len(clients) if len(clients) <= MOST_PAIRED else 0
    square = (paired, paired)
    totals = SignalSums(np.zeros((2, 4, len(clients))), np.zeros((2, *square)), np.zeros(square))
    for entry in entries:
        at = np.array([place[client] for client in entry.clients], np.intp)
        there, directions = directions_of(entry)
        everyone = slice(None), at
        if not paired and entry.coordinates.sketched:  # thousands of clients: nothing is kept of each pair
            _add(totals.alone, everyone, _of_each(entry, there, cosine_sums(directions)))
            continue
        cosines = cosines_of(directions)
        _add(totals.alone, everyone, _of_each(entry, there, cosines.sum(axis=1), cosines))
        if paired and len(there) > 1:
            _add_pairs(totals, at[there], beside_mean(cosines), nearness_of(entry.norms[there], cosines))
    return totals


def _add(totals: Matrix64, where: tuple[Any, ...], values: Matrix64) -> None:
    """Add the finite ones of these values, and count them."""
    known = np.isfinite(values)
    sums, counts = totals
    sums[where] += np.where(known, values, 0.0)
    counts[where] += known


def _add_pairs(totals: SignalSums, at: NDArray[np.intp], *values: Matrix64) -> None:
    """Add what was measured of each pair of these clients; all of them at once where that is everybody."""
    everybody = np.array_equal(at, np.arange(len(totals.met)))
    where: Any = slice(None) if everybody else np.ix_(at, at)
    for total, value in zip(totals.pairs, values, strict=True):
        total[where] += value
    totals.met[where] += 1


def _means(totals: Matrix64) -> Matrix64:
    return np.asarray(
        np.divide(totals[0], totals[1], out=np.full_like(totals[0], np.nan), where=totals[1] > 0)
    )


def _of_each(
    entry: RoundRecord, there: NDArray[np.intp], sums: Matrix64, cosines: Matrix64 | None = None
) -> Matrix64:
    """Log examples, length, outside and agreement of each client of a round; NaN for who sent nothing.

    ``sums`` are those of each one's cosines with the others; a sketched round needs no ``cosines``.
    """
    found = np.full((4, len(entry.clients)), np.nan)
    found[0] = np.log(entry.examples)
    if len(there):
        length = np.log(entry.norms[there])
        found[1, there] = length - np.median(length)
        if cosines is not None and not entry.coordinates.sketched:
            outside = length + log_unexplained(cosines)
            found[2, there] = outside - np.median(outside)
    if len(there) > 1:
        found[3, there] = (sums - sums.mean()) / (len(there) - 1)
    return found


def _row_means(matrix: Matrix64) -> Matrix64:
    """The mean of each row's finite numbers; NaN where there is none."""
    known = np.isfinite(matrix)
    return _means(np.stack([np.where(known, matrix, 0.0).sum(axis=1), known.sum(axis=1)]))


def _beside(values: Matrix64, examples: Matrix64) -> Matrix64:
    """What is left of these numbers when their slope over the examples, from 0 to 1, is taken off."""
    known = np.flatnonzero(np.isfinite(values))[:SLOPES]
    first, second = np.triu_indices(len(known), 1)
    run = examples[known][first] - examples[known][second]
    far = np.abs(run) > 0.1
    if far.sum() < 10:
        return values
    rise = values[known][first] - values[known][second]
    return np.asarray(values - np.clip(np.median(rise[far] / run[far]), 0.0, 1.0) * examples)


def leading(cosines: Matrix64) -> Matrix64:
    """√λ·v of the leading eigenvalue and vector of the doubly centred matrix; what is not known is usual."""
    known = np.isfinite(cosines)
    if not known.any():
        return np.full(len(cosines), np.nan)
    filled = np.where(known, cosines - cosines[known].mean(), 0.0)
    centred = filled - filled.mean(axis=0) - filled.mean(axis=1)[:, None] + filled.mean()
    value, vector = leading_pair(centred)
    return np.asarray(np.sqrt(max(value, 0.0)) * vector)
