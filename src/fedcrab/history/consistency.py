"""Checks that the numbers of a round agree with each other, independently of the hashes.

The coordinates X of a round give every length and angle between its updates, exactly for up to ``gram_limit``
clients. So ‖X_c‖ must be the norm of client c. The cosines c with the aggregate must belong to *some* vector,
whichever rule made it: there is a g with ‖g‖ ≤ 1 and ⟨X_c/‖X_c‖, g⟩ = c_c for every client. g may be shorter
than 1, because an aggregate need not lie in the span of the updates. Sketched coordinates are random and
bound nothing for a single client, so they are not compared.

Where the updates and the step are stored too, each norm and cosine must be theirs. A stored vector q with
‖q - u‖ ≤ ε gives ‖u‖ to ε, and the direction u/‖u‖ to 2ε/‖q‖.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.history.records import RoundRecord
from fedcrab.types import Vector
from fedcrab.vectors import norm

TOLERANCE = 1e-5  # far above rounding errors, far below what could change a decision
SAFE_PIVOT = 1e-4  # of a triangle of unit rows; below it the fast way is not accurate enough


def round_problems(entry: RoundRecord) -> list[str]:
    """Return the contradictions in a round, one sentence each."""
    if np.abs(entry.cosines).max(initial=0) > 1 + TOLERANCE or (entry.norms < 0).any():
        return [f"round {entry.index}: a cosine is above 1, or a norm is negative"]
    if entry.coordinates.sketched or not entry.clients:
        return []
    clients = len(entry.clients)
    rows = entry.coordinates.rows(range(clients))[:, :clients]  # a triangle: clients come first
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    wrong = np.abs(lengths - entry.norms) > TOLERANCE * np.maximum(lengths, entry.norms)
    if wrong.any():
        client = entry.clients[int(np.argmax(wrong))]
        return [f"round {entry.index}: the norm of client {client!r} does not match its coordinates"]
    there = lengths > 0
    if (entry.cosines == -1).all():  # the aggregate is zero
        return []
    if not there.any() or not _is_attainable(rows[there] / lengths[there, None], entry.cosines[there]):
        return [f"round {entry.index}: no aggregate can have these cosines with these coordinates"]
    return []


def _is_attainable(units: NDArray[np.float64], cosines: NDArray[np.float64]) -> bool:
    """Return whether some g with ‖g‖ ≤ 1 has these products with the unit rows."""
    square = units.shape[0] == units.shape[1]
    if square and np.abs(np.diagonal(units)).min() > SAFE_PIVOT:
        direction = np.linalg.solve(units, cosines)
        if direction @ direction <= 1 + TOLERANCE:
            return True
    return least_residual(units, cosines) <= TOLERANCE


def least_residual(units: NDArray[np.float64], cosines: NDArray[np.float64]) -> float:
    """Return min ‖U·g - c‖ over ‖g‖ ≤ 1: g = Σ s·b/(s² + μ) along the singular vectors, μ by bisection."""
    try:
        left, s, _ = np.linalg.svd(units, full_matrices=False)
    except np.linalg.LinAlgError:
        return float("inf")
    b = left.T @ cosines
    outside = max(float(cosines @ cosines - b @ b), 0.0)

    def along(mu: float) -> NDArray[np.float64]:
        shares: NDArray[np.float64] = np.divide(s * b, s * s + mu, out=np.zeros_like(s), where=s > 1e-13)
        return shares

    low, high = 0.0, float(s.max() * np.linalg.norm(b))
    if float(along(0.0) @ along(0.0)) <= 1:
        high = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if float(along(middle) @ along(middle)) <= 1 else (middle, high)
    rest = s * along(high) - b
    return float(np.sqrt(rest @ rest + outside))


def updates_problems(
    entry: RoundRecord, vectors: NDArray[np.float32], trained: tuple[slice, ...]
) -> list[str]:
    """Return how the stored update vectors of a round contradict its ledger."""
    for client, digest, length, vector in zip(
        entry.clients, entry.digests, entry.norms.tolist(), vectors, strict=True
    ):
        if hashlib.sha256(np.ascontiguousarray(vector, "<f4").data).hexdigest() != digest:
            return [f"round {entry.index}: the update of client {client!r} has a different sha256"]
        if abs(_length(vector, trained) - length) > TOLERANCE * length:
            return [f"round {entry.index}: the norm of client {client!r} does not match its update"]
    return []


def stored_problems(
    entry: RoundRecord,
    vectors: Iterable[Vector],
    errors: Iterable[float],
    step: NDArray[Any],
    step_error: float,
    trained: tuple[slice, ...],
) -> list[str]:
    """Return how norms and cosines contradict the stored updates and step, each known up to an error."""
    direction, length = _trained(step, trained), _length(step, trained)
    recorded = zip(entry.clients, entry.norms.tolist(), entry.cosines.tolist(), strict=True)
    for (client, norm_, cosine), vector, error in zip(recorded, vectors, errors, strict=True):
        found = _length(vector, trained)
        if abs(found - norm_) > error + TOLERANCE * max(found, norm_):
            return [f"round {entry.index}: the norm of client {client!r} does not match its update"]
        if min(found - error, length - step_error) <= 0:  # no direction is known
            continue
        product = float(_trained(vector, trained) @ direction) / (found * length)
        if abs(product - cosine) > TOLERANCE + 2 * (error / found + step_error / length):
            return [
                f"round {entry.index}: the cosine of client {client!r} does not match its update and the step"
            ]
    return []


def _trained(vector: NDArray[Any], trained: tuple[slice, ...]) -> NDArray[np.float64]:
    return np.concatenate([vector[part] for part in trained] or [vector[:0]]).astype(np.float64)


def _length(vector: NDArray[Any], trained: tuple[slice, ...]) -> float:
    return norm(vector, trained) if trained else 0.0
