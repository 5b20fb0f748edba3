"""Buffers among the coordinates: a rule decides over what is trained, and over nothing else.

Floating buffers (BatchNorm's running statistics) are averaged plainly, by examples; integer ones (its
counter) take the maximum. Neither is what a robust rule is meant for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.aggregate.columns import combination
from fedcrab.aggregate.rule import Aggregate, shares
from fedcrab.types import Layout, Vector


def beside_buffers(rule: Aggregate, layout: Layout) -> Aggregate:
    """The rule over the trained coordinates, with the buffers as they ought to be."""
    if all(f.trained for f in layout.fields):
        return rule
    trained = np.concatenate([np.arange(part.start, part.stop) for part in layout.trained()])

    def aggregate(matrix: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        result = np.zeros(matrix.shape[1], np.float32)
        for f, place in zip(layout.fields, layout.slices().values(), strict=True):
            if not f.trained:
                part = matrix[:, place]
                result[place] = part.max(axis=0) if f.integer else combination(shares(weights), part)
        result[trained] = rule(matrix[:, trained], weights)
        return result

    return aggregate
