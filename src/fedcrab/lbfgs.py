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

from fedcrab.errors import ConfigError
from fedcrab.vectors import Matrix64, add_products, stretches

Rows = Sequence[NDArray[np.floating]] | NDArray[np.floating]
WORST_CONDITION = 1e12  # of the small system; beyond it the solution has no digits that mean anything


def hessian_product(moved: Rows, changed: Rows, vector: NDArray[np.floating]) -> Matrix64 | None:
    """H̃·vector from the rows Δw of ``moved`` and Δg of ``changed``, oldest first.

    None where the pairs determine no such matrix: a pair of nothing, or a singular system.
    """
    pairs = _check(moved, changed, vector)
    gram = _gram([*moved, *changed, vector])
    lengths = np.sqrt(np.diagonal(gram)[:pairs])
    if not (lengths.all() and np.isfinite(gram).all()):
        return None
    unit = np.concatenate([1 / lengths, 1 / lengths, [1.0]])
    products = gram * np.outer(unit, unit)
    solution = _solve(products, pairs)
    if solution is None:
        return None
    sigma, p = solution
    factors = unit * np.concatenate([-sigma * p[pairs:], -p[:pairs], [sigma]])
    return _combination([*moved, *changed, vector], factors)


def _solve(products: Matrix64, pairs: int) -> tuple[float, Matrix64] | None:
    """σ and p, from the inner products of all Δw, all Δg and v, in that order."""
    w, g = slice(0, pairs), slice(pairs, 2 * pairs)
    A = products[w, g]
    sigma = float(A[-1, -1])  # ⟨Δw, Δw⟩ is 1
    D, L = np.diag(np.diagonal(A)), np.tril(A, -1)
    system = np.block([[-D, L.T], [L, sigma * products[w, w]]])
    if not system.any() or np.linalg.cond(system) > WORST_CONDITION:
        return None
    return sigma, np.linalg.solve(system, np.concatenate([products[g, -1], sigma * products[w, -1]]))


def _check(moved: Rows, changed: Rows, vector: NDArray[np.floating]) -> int:
    """How many pairs there are."""
    shapes = {np.shape(row) for row in (*moved, *changed)}
    if not len(moved) or len(moved) != len(changed) or shapes != {np.shape(vector)}:
        raise ConfigError(
            "L-BFGS takes as many differences of gradients as of points, at least one, all as long as the "
            f"vector; got {len(changed)} and {len(moved)} of shapes {sorted(shapes)}, {np.shape(vector)}"
        )
    return len(moved)


def _gram(rows: Sequence[NDArray[np.floating]]) -> Matrix64:
    """All inner products, in float64, a block at a time."""
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


def _block(rows: Sequence[NDArray[np.floating]], part: slice) -> Matrix64:
    block = np.empty((len(rows), part.stop - part.start))
    for place, row in zip(block, rows, strict=True):
        place[:] = row[part]
    return block
