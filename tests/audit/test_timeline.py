"""When a trigger was planted, from how well it works in each kept model."""

from itertools import product

import numpy as np
import pytest

from fedcrab.audit.timeline import Timeline, change


def test_the_change_makes_the_fewest_exceptions() -> None:
    for works in product([False, True], repeat=7):
        counts = [sum(works[:i]) + works[i:].count(False) for i in range(8)]
        assert change(np.array(works)) == counts.index(min(counts))


@pytest.mark.parametrize(
    ("lifts", "planted"),
    [
        ((0, 0, 0.8, 0.9, 0.9), 4),
        ((0, 0.8, 0.2, 0.9, 0.9), 2),  # one model in which it fails
        ((0.9, 0, 0, 0, 0.9), 8),
        ((0, 0.3, 0.3, 0.3, 0.4), 2),  # half of the last lift is enough
        ((0.9, 0.9, 0.9, 0.9, 0.1), None),
    ],
)
def test_when_it_was_planted(lifts: tuple[float, ...], planted: int | None) -> None:
    assert Timeline((0, 2, 4, 6, 8), np.array(lifts)).planted == planted
