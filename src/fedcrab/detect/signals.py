"""Signals of the ledger detector: a few numbers per client from the Gram matrices, averaged over rounds.

For each round, from the Gram matrix K_t of its updates:

    length      log ‖u_i‖
    outside     log of the length of u_i's component outside the span of all other updates of the round
    cosines     c_ij, between the updates of i and j
    nearness    log10 of ‖u_i - u_j‖ / √(‖u_i‖² + ‖u_j‖²), at least -6, which copies have

The median of the round is subtracted from lengths and nearness, and its mean from cosines, so that it does
not matter in which rounds a client took part. From the means over rounds, for any set of clients most of
which met:

    agreement   the mean of c_ij over the other clients of the set
    apart       the leading coordinate of the clients in the matrix of c_ij: two groups that agree within
                themselves more than with each other are at its two ends

Lengths grow with the number of examples; this effect is removed (Theil and Sen's slope).

A round of a thousand clients has half a million pairs. So the pairs are computed with matrix products and a
few passes over the result, without NaN: clients that sent a zero update are left out first, and diagonals
are 0.
The leading eigenvector of a large matrix comes from Lanczos's method with full reorthogonalisation (Golub
and Van Loan, "Matrix Computations", 10.1 to 10.3). |β_k·s_k| bounds the error of the pair. If that does not
become small, and for small matrices, all eigenvectors are computed.
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

LANCZOS_FROM = 200  # rows; up to here all eigenvectors are as fast
STEPS, CHECK_EVERY = 160, 20  # of Lanczos's method: at most, and between two checks of the error
EXACT = 1e-10  # of the eigenvalue


def leading_pair(matrix: Matrix64) -> tuple[float, Matrix64]:
    """Return the largest eigenvalue of a symmetric matrix and its eigenvector, of length 1."""
    pair = _lanczos(matrix) if len(matrix) > LANCZOS_FROM else None
    return _largest(matrix) if pair is None else pair


def _lanczos(matrix: Matrix64) -> tuple[float, Matrix64] | None:
    """Return the leading pair; None if it is not found within STEPS steps."""
    basis, diagonal, below = np.zeros((STEPS + 1, len(matrix))), np.zeros(STEPS), np.zeros(STEPS)
    start = rng_for(0, "leading pair", len(matrix)).normal(size=len(matrix))
    basis[0] = start / np.linalg.norm(start)
    for step in range(STEPS):
        new = matrix @ basis[step]
        diagonal[step] = new @ basis[step]
        for _ in range(2):  # after one pass, rounding errors along old directions are left
            new -= basis[: step + 1].T @ (basis[: step + 1] @ new)
        below[step] = np.linalg.norm(new)
        if (step + 1) % CHECK_EVERY == 0 or not below[step]:
            tridiagonal = np.diag(diagonal[: step + 1]) + np.diag(below[:step], 1) + np.diag(below[:step], -1)
            value, weights = _largest(tridiagonal)
            if below[step] * abs(weights[-1]) <= EXACT * abs(value):
                vector = weights @ basis[: step + 1]
                return value, vector / np.linalg.norm(vector)
        if not below[step]:
            return None
        basis[step + 1] = new / below[step]
    return None


def _largest(matrix: Matrix64) -> tuple[float, Matrix64]:
    values, vectors = np.linalg.eigh(matrix)
    return float(values[-1]), np.asarray(vectors[:, -1])


CLOSEST = 1e-6  # smallest relative distance that float32 resolves; copies have less
RIDGE = 1e-9  # on the correlations, so that copies do not make them singular
SMALL = 128  # rows of a triangular matrix that is inverted directly


def directions_of(entry: RoundRecord) -> tuple[NDArray[np.intp], Matrix64]:
    """Return which clients of a round sent a nonzero update, and the unit vectors of these updates."""
    rows = entry.coordinates.rows(range(len(entry.clients)))
    scale = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    there = np.flatnonzero((scale > 0) & (entry.norms > 0))
    return there, rows[there] / scale[there, None]


def cosines_of(directions: Matrix64) -> Matrix64:
    """Return the cosine of each pair, with a diagonal of 0."""
    cosines = directions @ directions.T
    np.clip(cosines, -1.0, 1.0, out=cosines)
    np.fill_diagonal(cosines, 0.0)
    return np.asarray(cosines)


def cosine_sums(directions: Matrix64) -> Matrix64:
    """Return each sum of cosines with the others, Σ_j ⟨d_i, d_j⟩ - 1, without the matrix of all pairs."""
    return np.asarray(directions @ directions.sum(axis=0) - 1.0)


def minus_mean(cosines: Matrix64) -> Matrix64:
    """Return the cosines minus the mean of all pairs, with a diagonal of 0."""
    pairs = len(cosines) * (len(cosines) - 1)
    found = cosines - cosines.sum() / max(pairs, 1)
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def nearness_of(norms: Matrix64, cosines: Matrix64) -> Matrix64:
    """Return log10 of each pair's relative distance, minus the median of the round."""
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
    """Return the log of the share of each update's length that is outside the span of the others.

    The diagonal of the inverse correlation matrix is 1 / (1 - R²).
    """
    if len(cosines) < 3:
        return np.full(len(cosines), np.nan)
    correlation = cosines.copy()
    np.fill_diagonal(correlation, 1 + RIDGE)
    return np.asarray(-0.5 * np.log(np.maximum(inverse_diagonal(correlation), 1.0)))


def inverse_diagonal(matrix: Matrix64) -> Matrix64:
    """Return the diagonal of the inverse of M = LLᵀ: the sums of squares of the columns of L⁻¹."""
    try:
        inverse = _inverse_triangular(np.asarray(np.linalg.cholesky(matrix), np.float64))
    except np.linalg.LinAlgError:
        return np.asarray(np.diagonal(np.linalg.inv(matrix)))
    return np.asarray(np.square(inverse, out=inverse).sum(axis=0))


def _inverse_triangular(lower: Matrix64) -> Matrix64:
    """Return the inverse of a lower triangle: [[A, 0], [B, D]]⁻¹ = [[A⁻¹, 0], [-D⁻¹·B·A⁻¹, D⁻¹]]."""
    half = len(lower) // 2
    if len(lower) <= SMALL:
        return np.asarray(np.linalg.inv(lower), np.float64)
    inverse = np.zeros_like(lower)
    inverse[:half, :half] = first = _inverse_triangular(lower[:half, :half])
    inverse[half:, half:] = second = _inverse_triangular(lower[half:, half:])
    inverse[half:, :half] = -second @ (lower[half:, :half] @ first)
    return inverse


SLOPES = 300  # clients whose pairs give the slope of length over examples
MET = 0.5  # share of all pairs that must have met; below it, groups reflect who met in which round
MOST_PAIRED = 2000  # clients; with more, pairs are not measured


@dataclass(frozen=True, slots=True)
class Signals:
    """Means over rounds, per client or pair; NaN if it was in no round."""

    examples: Matrix64  # log
    length: Matrix64
    outside: Matrix64  # NaN for sketched rounds: the sketches of many clients span the whole space
    agreement: Matrix64  # with all clients of the round
    cosines: Matrix64  # (clients, clients), NaN on the diagonal; empty if there are too many clients
    nearness: Matrix64  # (clients, clients), NaN on the diagonal; empty if there are too many clients

    def among(self, some: NDArray[np.intp]) -> dict[str, Matrix64]:
        """Return the signals of these clients, compared with each other only."""
        lengths = {
            "length": _without_slope(self.length[some], self.examples[some]),
            "outside": _without_slope(self.outside[some], self.examples[some]),
        }
        cosines = self.cosines[np.ix_(some, some)] if self.cosines.size else self.cosines
        if not (cosines.size and np.isfinite(cosines).mean() > MET):
            return {**lengths, "agreement": self.agreement[some]}
        return {**lengths, "agreement": _row_means(cosines), "apart": leading(cosines)}


@dataclass(frozen=True, slots=True)
class SignalSums:
    """Sums and counts over some rounds; the sums of other rounds can be added."""

    single: Matrix64  # (sum and count, signal, clients)
    pairs: Matrix64  # (cosine and nearness, clients, clients)
    met: Matrix64  # (clients, clients): the number of rounds with both

    def __add__(self, other: SignalSums) -> SignalSums:
        return SignalSums(self.single + other.single, self.pairs + other.pairs, self.met + other.met)

    def signals(self) -> Signals:
        """Return the means."""
        met = self.met.copy()
        np.fill_diagonal(met, 0)
        pair_means = (_means(np.stack([total, met])) for total in self.pairs)
        return Signals(*_means(self.single), *pair_means)


def gather(entries: Sequence[RoundRecord], clients: Sequence[ClientId]) -> SignalSums:
    """Return the sums of these clients over these rounds, in one pass."""
    place = {client: i for i, client in enumerate(clients)}
    paired = len(clients) if len(clients) <= MOST_PAIRED else 0
    square = (paired, paired)
    totals = SignalSums(np.zeros((2, 4, len(clients))), np.zeros((2, *square)), np.zeros(square))
    for entry in entries:
        at = np.array([place[client] for client in entry.clients], np.intp)
        there, directions = directions_of(entry)
        everyone = slice(None), at
        if not paired and entry.coordinates.sketched:  # thousands of clients: no matrix of pairs
            _add(totals.single, everyone, _single(entry, there, cosine_sums(directions)))
            continue
        cosines = cosines_of(directions)
        _add(totals.single, everyone, _single(entry, there, cosines.sum(axis=1), cosines))
        if paired and len(there) > 1:
            _add_pairs(totals, at[there], minus_mean(cosines), nearness_of(entry.norms[there], cosines))
    return totals


def _add(totals: Matrix64, where: tuple[Any, ...], values: Matrix64) -> None:
    """Add the finite values, and count them."""
    known = np.isfinite(values)
    sums, counts = totals
    sums[where] += np.where(known, values, 0.0)
    counts[where] += known


def _add_pairs(totals: SignalSums, at: NDArray[np.intp], *values: Matrix64) -> None:
    """Add the values of each pair of these clients; without an index if these are all clients."""
    everybody = np.array_equal(at, np.arange(len(totals.met)))
    where: Any = slice(None) if everybody else np.ix_(at, at)
    for total, value in zip(totals.pairs, values, strict=True):
        total[where] += value
    totals.met[where] += 1


def _means(totals: Matrix64) -> Matrix64:
    return np.asarray(
        np.divide(totals[0], totals[1], out=np.full_like(totals[0], np.nan), where=totals[1] > 0)
    )


def _single(
    entry: RoundRecord, there: NDArray[np.intp], sums: Matrix64, cosines: Matrix64 | None = None
) -> Matrix64:
    """Return log examples, length, outside and agreement per client of a round; NaN after a zero update.

    ``sums`` has each client's sum of cosines with the others; a sketched round needs no ``cosines``.
    """
    signals = np.full((4, len(entry.clients)), np.nan)
    signals[0] = np.log(entry.examples)
    if len(there):
        length = np.log(entry.norms[there])
        signals[1, there] = length - np.median(length)
        if cosines is not None and not entry.coordinates.sketched:
            outside = length + log_unexplained(cosines)
            signals[2, there] = outside - np.median(outside)
    if len(there) > 1:
        signals[3, there] = (sums - sums.mean()) / (len(there) - 1)
    return signals


def _row_means(matrix: Matrix64) -> Matrix64:
    """Return the mean of the finite numbers of each row; NaN if there are none."""
    known = np.isfinite(matrix)
    return _means(np.stack([np.where(known, matrix, 0.0).sum(axis=1), known.sum(axis=1)]))


def _without_slope(values: Matrix64, examples: Matrix64) -> Matrix64:
    """Return the values minus their slope over the log examples, which is limited to 0 … 1."""
    known = np.flatnonzero(np.isfinite(values))[:SLOPES]
    first, second = np.triu_indices(len(known), 1)
    run = examples[known][first] - examples[known][second]
    far = np.abs(run) > 0.1
    if far.sum() < 10:
        return values
    rise = values[known][first] - values[known][second]
    return np.asarray(values - np.clip(np.median(rise[far] / run[far]), 0.0, 1.0) * examples)


def leading(cosines: Matrix64) -> Matrix64:
    """Return √λ·v of the doubly centred matrix, its leading pair; an unknown cosine becomes the mean."""
    known = np.isfinite(cosines)
    if not known.any():
        return np.full(len(cosines), np.nan)
    filled = np.where(known, cosines - cosines[known].mean(), 0.0)
    centred = filled - filled.mean(axis=0) - filled.mean(axis=1)[:, None] + filled.mean()
    value, vector = leading_pair(centred)
    return np.asarray(np.sqrt(max(value, 0.0)) * vector)
