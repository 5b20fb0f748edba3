"""Statistics in a replay stay values that somebody could have measured."""

from pathlib import Path

import numpy as np
import pytest

from fedcrab import Everything, Layout, plan
from fedcrab.recover import replay
from fedcrab.recover.buffers import within_measured
from fedcrab.types import Field, Updates
from recover.scenes import Answering, record

LAYOUT = Layout(
    (
        Field("weight", (3,)),
        Field("running_var", (2,), trained=False),
        Field("counter", (), trained=False, integer=True),
    )
)
ILL = frozenset("b")


def answer(model: np.ndarray, client: str, t: int, epochs: object = None) -> tuple[np.ndarray, float]:
    """A step towards ones; the variance becomes 0.1, but that of an attacker jumps up and falls again."""
    weight, variance = model[:3], model[3:5]
    swing = 40.0 * (t % 2) if client in ILL else 0.0
    local = 0.2 * variance + 0.8 * (0.1 + swing)
    return np.concatenate([0.3 * (1 + (client in ILL) - weight), local - variance, [5]]), 10.0


@pytest.mark.parametrize("every", [None, 2, 4])
def test_a_variance_stays_positive(every: int | None, tmp_path: Path) -> None:
    start = np.array([0, 0, 0, 1, 1, 0], np.float32)
    history = record(
        tmp_path / "h", Answering(answer), list("abcdef"), 24, Everything(), model=start, layout=LAYOUT
    )
    steps = [*replay(plan(history, ILL, beta=0), Answering(answer), every=every)]
    assert any(not step.asked for step in steps[1:])  # else nothing is estimated
    assert min(step.model[3:5].min() for step in steps) > 0
    assert steps[-1].model[3:5] == pytest.approx([0.1, 0.1], abs=0.05)
    assert steps[-1].model[5] == 120


def test_the_range_is_that_of_all_measurements() -> None:
    start, here = np.array([0, 0, 0, 5, 5, 0], np.float32), np.array([0, 0, 0, 1, 1, 0], np.float32)
    stored = Updates(("a",), np.array([[9, 9, 9, -4.5, 1, 1]], np.float32), np.ones(1))  # 0.5 and 6
    fresh = Updates(("b",), np.array([[9, 9, 9, 1, -0.5, 1]], np.float32), np.ones(1))  # 2 and 0.5
    measured = [(start, stored), (here, fresh)]
    after = np.array([7, 7, 7, -3.5, 8, 4], np.float32)
    assert within_measured(after, here, LAYOUT, measured).tolist() == [7, 7, 7, 0.5, 6, 4]
    inside = np.array([7, 7, 7, 1.5, 3, 4], np.float32)
    assert within_measured(inside, here, LAYOUT, measured).tolist() == inside.tolist()
    assert within_measured(after, here, Layout.flat(6), measured) is after
