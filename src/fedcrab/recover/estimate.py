"""FedRecover's estimate of one client's update, and the pairs that it is made from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcrab.lbfgs import hessian_product
from fedcrab.recover.step import Pair, Pairs
from fedcrab.types import Layout, Updates, Vector
from fedcrab.vectors import is_finite


def estimate(
    stored: Vector, pairs: Sequence[Pair], moved: Vector, tau: float, layout: Layout
) -> Vector | str:
    """û = u + H̃·(ŵ - M), or why it is of no use.

    τ bounds every trained number of a usable estimate.
    """
    if not pairs:
        return "there is no pair to estimate from"
    product = hessian_product([p.moved for p in pairs], [p.changed for p in pairs], moved)
    if product is None:
        return "the pairs determine no Hessian"
    product += stored
    largest = max((float(np.abs(product[part]).max()) for part in layout.trained()), default=0.0)
    if not largest <= tau:
        return f"the estimate reaches {largest:.3g}, above {tau:.3g}"
    return product.astype(np.float32)


def learnt(
    pairs: Pairs, exact: Updates, stored: Updates, moved: Vector, *, round: int, memory: int, layout: Layout
) -> Pairs:
    """The pairs with those of this round's exact answers, the last ``memory`` of each client."""
    if not moved.any():
        return pairs
    before, longer = dict(zip(stored.clients, stored.vectors, strict=True)), dict(pairs)
    for client, vector in zip(exact.clients, exact.vectors, strict=True):
        with np.errstate(over="ignore"):
            changed = trained_only(vector - before[client], layout)
        if is_finite(changed):
            longer[client] = (*longer.get(client, ()), Pair(round, moved, changed))[-memory:]
    return longer


def trained_only(vector: Vector, layout: Layout) -> Vector:
    """The vector with zero in place of buffers, which then have no part in any product."""
    result = np.zeros_like(vector)
    for part in layout.trained():
        result[part] = vector[part]
    return result
