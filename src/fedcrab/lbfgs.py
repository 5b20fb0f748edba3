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
from fedcrab.vectors import Matrix64, add_products, stretches

Rows = Sequence[NDArray[np.floating]] | NDArray[np.floating]
WIDTH = 4  # rows whose blocks fit the cache together
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
    same, own = _gram(shared), _cross(shared, changed)
    lengths = np.sqrt(np.diagonal(same)[:pairs])
    if not (lengths.all() and np.isfinite(same).all()):
        return [None] * len(changed)
    return [_factors(same, products, lengths) for products in own]


def _factors(same: Matrix64, own: Matrix64, lengths: Matrix64) -> Matrix64 | None:
    """Return the factors of one function, from the products of ΔW and v with each other and with its ΔG."""
    if not np.isfinite(own).all():
        return None
    pairs, unit = len(lengths), 1 / lengths
    points = np.concatenate([unit, [1.0]])
    solution = _solve(same * np.outer(points, points), own * np.outer(points, unit), pairs)
    if solution is None:
        return None
    sigma, p = solution
    return np.concatenate([-sigma * p[pairs:] * unit, -p[:pairs] * unit, [sigma]])


def _solve(same: Matrix64, own: Matrix64, pairs: int) -> tuple[float, Matrix64] | None:
    """Return σ and p, from the inner products of all Δw and v with each other and with all Δg."""
    A = own[:pairs]
    sigma = float(A[-1, -1])  # ⟨Δw, Δw⟩ is 1
    D, L = np.diag(np.diagonal(A)), np.tril(A, -1)
    system = np.block([[-D, L.T], [L, sigma * same[:pairs, :pairs]]])
    if not system.any() or np.linalg.cond(system) > WORST_CONDITION:
        return None
    return sigma, np.linalg.solve(system, np.concatenate([own[-1], sigma * same[:pairs, -1]]))


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


def _cross(shared: Sequence[NDArray[np.floating]], changed: Sequence[Rows]) -> Matrix64:
    """Return the products of the shared rows with those of each function: (function, shared row, its row)."""
    found = np.zeros((len(changed), len(shared), len(changed[0]) if len(changed) else 0))
    for part in stretches((slice(0, len(shared[0])),), WIDTH):
        points = _block(shared, part)
        for products, rows in zip(found, changed, strict=True):
            products += points @ _block(rows, part).T
    return found


def _gram(rows: Sequence[NDArray[np.floating]]) -> Matrix64:
    """Return all inner products in float64, one block at a time."""
    gram = np.zeros((len(rows), len(rows)))
    for part in stretches((slice(0, len(rows[0])),), len(rows)):
        add_products(gram, _block(rows, part))
    return gram


def _combination(rows: Sequence[NDArray[np.floating]], factors: Matrix64) -> Matrix64:
    """Σ factor·row."""
    total = np.empty(len(rows[0]))
    for part in stretches((slice(0, len(rows[0])),), len(rows)):
        total[part] = factors @ _block(rows, part)
    return total


def _block(rows: Rows, part: slice) -> Matrix64:
    block = np.empty((len(rows), part.stop - part.start))
    for place, row in zip(block, rows, strict=True):
        place[:] = row[part]
    return block
