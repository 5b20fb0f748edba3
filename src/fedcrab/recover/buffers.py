"""Clip the buffers of an estimated round, such as BatchNorm's statistics, to values that were measured.

A replayed round without contact adds the stored change of a buffer to another model's buffer:

    b = x + (s - m)

x is the buffer of the recovered model, m that of the history's model, and s the one that a client ended the
round with. For trained numbers this is the right start, because updates are steps. But a buffer is a
measurement, and b can be a value that nobody ever measured, such as a negative variance, whose root is not a
number. So b is clipped to the range of x, of every s and of every fresh answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcrab.types import Layout, Updates, Vector


def within_measured(
    after: Vector, before: Vector, layout: Layout, measured: Sequence[tuple[Vector, Updates]]
) -> Vector:
    """Return ``after`` with every floating-point buffer clipped to the range that was measured.

    ``before`` is x. ``measured`` are updates, each with the model that it was made from. If the layout has no
    such buffers, the same array is returned.
    """
    fields = zip(layout.fields, layout.slices().values(), strict=True)
    places = [place for field, place in fields if not (field.trained or field.integer)]
    if not places:
        return after
    clipped = after.copy()
    for place in places:
        ends = [before[None, place], *(start[place] + some.vectors[:, place] for start, some in measured)]
        rows = np.concatenate(ends)
        clipped[place] = np.clip(after[place], rows.min(axis=0), rows.max(axis=0))
    return clipped
