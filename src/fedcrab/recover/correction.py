"""What is wrong with stored updates at another model: measured by fresh answers, or estimated from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.mean import shares
from fedcrab.lbfgs import hessian_product
from fedcrab.recover.step import Pair
from fedcrab.types import Layout, Updates, Vector
from fedcrab.vectors import is_finite, norm

CLIP = 2.0  # times the median length of the differences
FEWEST = 3  # answers that a median can be taken of, unless these are all there are


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """c: by how much the clients' updates differ from the stored ones, and how sure that is."""

    vector: Vector = field(repr=False)  # integer buffers are zero
    answers: int
    clients: int  # of whom these answered
    spread: float  # √(Σ‖d - c‖² / (answers - 1)): how far one client's difference is from c

    @property
    def standard_error(self) -> float:
        """Spread / √answers, less the part of the clients that was asked: of all of them it is exact."""
        left = 1 - self.answers / self.clients
        return self.spread * float(np.sqrt(left / self.answers))


def correction_of(fresh: Updates, stored: Updates, *, trust: bool, layout: Layout) -> Correction | None:
    """The correction c from the answers of some clients; None where there are too few.

    The coordinate-wise median of û - q, each clipped to twice the median of their lengths; with ``trust``
    the mean weighted by examples.
    """
    places = [stored.clients.index(client) for client in fresh.clients if client in stored.clients]
    if len(places) < min(1 if trust else FEWEST, len(stored.clients)) or not places:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        differences = fresh.only(stored.clients).vectors - stored.vectors[places]
    usable = [i for i, row in enumerate(differences) if is_finite(row)]
    differences, weights = differences[usable], stored.weights[places][usable]
    if len(differences) < min(1 if trust else FEWEST, len(stored.clients)):
        return None
    for f, place in zip(layout.fields, layout.slices().values(), strict=True):
        if f.integer:
            differences[:, place] = 0
    if trust:
        vector = (shares(weights) @ differences.astype(np.float64)).astype(np.float32)
    else:
        differences = _clipped(differences, layout)
        vector = np.median(differences, axis=0).astype(np.float32)
    apart = [norm(row - vector, layout.trained()) ** 2 for row in differences]
    spread = float(np.sqrt(sum(apart) / max(len(apart) - 1, 1)))
    return Correction(vector, len(differences), len(stored.clients), spread)


def _clipped(differences: NDArray[np.float32], layout: Layout) -> NDArray[np.float32]:
    """Each at most twice as long as the median one."""
    lengths = np.array([norm(row, layout.trained()) for row in differences])
    most = CLIP * float(np.median(lengths))
    factors = np.divide(most, lengths, out=np.ones_like(lengths), where=lengths > most)
    clipped: NDArray[np.float32] = (differences * factors[:, None]).astype(np.float32)
    return clipped


def estimated_correction(
    pairs: Sequence[Pair], moved: Vector, stored: Updates, layout: Layout
) -> Vector | None:
    """H̃v, at most as long as the mean of the stored updates; None without a pair that determines it."""
    if not pairs or not moved.any():
        return None
    product = hessian_product([p.moved for p in pairs], [p.changed for p in pairs], moved)
    if product is None:
        product = hessian_product([pairs[-1].moved], [pairs[-1].changed], moved)
    if product is None:
        return None
    mean = shares(stored.weights) @ stored.vectors.astype(np.float64)
    most, length = norm(mean, layout.trained()), norm(product)
    return (product * min(1.0, most / length if length else 1.0)).astype(np.float32)
