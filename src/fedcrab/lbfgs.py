"""Compact L-BFGS: the product of an estimated Hessian with a vector, from a few pairs of differences.

    H̃v = σv - [ΔG, σΔW]·p,    [[-D, Lᵀ], [L, σ·ΔWᵀΔW]]·p = [ΔGᵀv ; σ·ΔWᵀv]

ΔW and ΔG hold the pairs (how far a point moved, how its gradient changed), the oldest first; A = ΔWᵀΔG,
D its diagonal, L what is strictly below it; σ = ⟨Δg, Δw⟩ / ⟨Δw, Δw⟩ of the newest pair. It is the matrix
that the BFGS recursion reaches from σI, never formed: the work is that of a few inner products. It
maps the newest Δw to its Δg; earlier pairs are met exactly only where they are conjugate to later ones.

Byrd, Nocedal, Schnabel, "Representations of quasi-Newton matrices and their use in limited memory
methods", Mathematical Programming 63, 1994. Departs from it: every pair is scaled to ‖Δw‖ = 1 first,
which leaves the estimate the same and keeps its small system solvable when the steps were tiny.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError, shown
from fedcrab.vectors import Matrix64, Rows, products, stretches, weighted_sum

WORST_CONDITION = 1e12  # of the small system; beyond it the solution has no correct digits


def hessian_product(moved: Rows, changed: Rows, vector: NDArray[np.floating]) -> Matrix64 | None:
    """Return H̃·vector from the rows Δw of ``moved`` and Δg of ``changed``, oldest first.

    Returns None if the pairs do not determine the matrix: a pair of zeros, or a singular system.
    """
    (factors,) = hessian_factors(moved, [changed], vector)
    return None if factors is None else _combination([*moved, *changed, vector], factors)


def hessian_factors(
    moved: Rows, changed: Sequence[Rows], vector: NDArray[np.floating]
) -> list[Matrix64 | None]:
    """Return H̃·vector for many functions at the same points, each as factors of [ΔW, its ΔG, vector].

    ``changed`` has the rows Δg of each function. What does not depend on them is computed once.
    """
    pairs = _check(moved, changed, vector)
    shared = [*moved, vector]
    same = products(shared, shared)
    lengths = np.sqrt(np.diagonal(same)[:pairs])
    if not changed or not (lengths.all() and np.isfinite(same).all()):
        return [None] * len(changed)
    own = products(shared, [row for rows in changed for row in rows])
    own = own.reshape(len(shared), len(changed), pairs).swapaxes(0, 1)  # function, shared row, its row
    unit = 1 / lengths
    points = np.append(unit, 1.0)
    sigma, p, solved = _solve(same * np.outer(points, points), own * np.outer(points, unit), pairs)
    factors = np.concatenate([-sigma * p[:, pairs:] * unit, -p[:, :pairs] * unit, sigma], axis=1)
    return [row if good else None for row, good in zip(factors, solved, strict=True)]


def _solve(same: Matrix64, own: Matrix64, pairs: int) -> tuple[Matrix64, Matrix64, NDArray[np.bool_]]:
    """Return σ and p of each function, and which of them are determined.

    ``same`` holds the inner products of all Δw and v with each other, ``own`` those with all Δg.
    """
    A = own[:, :pairs]
    sigma = A[:, -1:, -1]  # ⟨Δw, Δw⟩ is 1
    D, L = A * np.eye(pairs), np.tril(A, -1)
    system = np.block([[-D, L.swapaxes(1, 2)], [L, sigma[:, :, None] * same[:pairs, :pairs]]])
    right = np.concatenate([own[:, -1], sigma * same[:pairs, -1]], axis=1)
    finite = np.isfinite(system).all(axis=(1, 2)) & np.isfinite(right).all(axis=1)
    solved = finite & (np.linalg.cond(np.where(finite[:, None, None], system, 0)) <= WORST_CONDITION)
    p = np.zeros_like(right)
    p[solved] = np.linalg.solve(system[solved], right[solved, :, None])[:, :, 0]
    return sigma, p, solved


def _check(moved: Rows, changed: Sequence[Rows], vector: NDArray[np.floating]) -> int:
    """Return the number of pairs."""
    shapes = {np.shape(row) for row in (*moved, *(row for rows in changed for row in rows))}
    counts = {len(rows) for rows in changed} or {len(moved)}
    if not len(moved) or counts != {len(moved)} or shapes != {np.shape(vector)}:
        raise ConfigError(
            "L-BFGS needs one difference of gradients per difference of points, at least one, all as long as "
            f"the vector; got {shown(counts)} and {len(moved)} of shapes {sorted(shapes)}, {np.shape(vector)}"
        )
    return len(moved)


def _combination(rows: Sequence[NDArray[np.floating]], factors: Matrix64) -> Matrix64:
    """Σ factor·row."""
    total = np.empty(len(rows[0]))
    for part in stretches((slice(0, len(rows[0])),), len(rows)):
        total[part] = weighted_sum(factors, [row[part] for row in rows])
    return total
