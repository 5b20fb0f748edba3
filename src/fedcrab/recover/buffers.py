"""Buffers of an estimated round, such as BatchNorm's statistics, kept within what was really measured.

A replayed round without contact adds the stored change of a buffer to another model's buffer:

    b = x + (s - m)        x: the recovered model's, m: the history's, s: what a client ended the round with

For trained numbers that is the right start, as updates are steps. A buffer is a measurement, and b can be a
value that nobody ever measured: a negative variance, whose root is no number. So b is clipped to the range of
x, of every s and of every fresh answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcrab.types import Layout, Updates, Vector


def within_measured(
    after: Vector, before: Vector, layout: Layout, measured: Sequence[tuple[Vector, Updates]]
) -> Vector:
    """``after`` with every buffer of floating numbers clipped to the range that was measured.

    ``before`` is x, ``measured`` are updates, each with the model that it was made from. The same array is
    returned where the layout has no such buffers.
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
