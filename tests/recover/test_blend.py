"""The two estimates of a correction, and a history that swings, where the first of them misleads."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedcrab import Everything, plan
from fedcrab.recover import replay, retrain
from fedcrab.recover.blend import FADING, Blend
from fedcrab.recover.step import Pair, ReplayState
from fedcrab.seeds import rng_for
from recover.scenes import Answering, record

SIZE, CLIENTS, ILL = 5, list("abcdefghijkl"), frozenset("bdfhjl")
STATE = ReplayState(next_contact=0, ask=5)
rows = arrays(np.float32, SIZE, elements=st.floats(-4, 4, width=16))


def recent(*steps: np.ndarray) -> list[Pair]:
    return [Pair(t, np.zeros(SIZE, np.float32), np.array(step, np.float32)) for t, step in enumerate(steps)]


@given(st.lists(st.tuples(rows, rows, rows, rows), min_size=1, max_size=4))
def test_the_share_would_have_been_nearest_to_what_contacts_measured(contacts: list) -> None:
    """Over all contacts, a later one counting twice as much; no other share from 0 to 1 is nearer."""
    state, errors = STATE, []
    for first, mean, step, measured in contacts:
        state = Blend.of(first, mean, recent(step), state).compared(measured, 9, state)
        errors.append((first.astype(float), step.astype(float) - mean, measured))
    assume(state.apart > 1e-3)
    found = Blend.of(*contacts[-1][:2], recent(contacts[-1][2]), state)

    def error(share: float) -> float:
        parts = [np.sum((share * one + (1 - share) * two - c) ** 2) for one, two, c in errors]
        return float(sum(part * FADING**age for age, part in enumerate(reversed(parts))))

    least = min(map(error, np.linspace(0, 1, 101)))
    assert error(found.share) <= least * (1 + 1e-4) + 1e-4


def test_the_first_counts_alone_until_a_contact_can_compare() -> None:
    first, mean = np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)
    blend = Blend.of(first, mean, recent(3 * first, 5 * first), STATE)
    np.testing.assert_array_equal(blend.correction(), first)
    np.testing.assert_array_equal(blend.second, 4 * first)


def test_a_contact_in_the_round_after_another_is_not_compared() -> None:
    first, mean = np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)
    blend = Blend.of(first, mean, recent(3 * first, 5 * first), STATE)  # in rounds 0 and 1
    assert blend.compared(mean, 2, STATE) == STATE
    assert blend.compared(mean, 3, STATE).apart > 0


def test_without_a_second_estimate_the_first_is_the_correction() -> None:
    first, mean = np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)
    huge = np.full(SIZE, -3e38, np.float32)
    for blend in (Blend.of(first, mean, [], STATE), Blend.of(first, huge, recent(-huge), STATE)):
        np.testing.assert_array_equal(blend.correction(), first)
        assert blend.compared(mean, 9, STATE) == STATE
    assert Blend.of(None, mean, recent(first), STATE).correction() is None
    far = Blend.of(-huge, mean, recent(huge), STATE)  # further apart than a float32 can tell
    assert far.compared(mean, 9, STATE) == STATE


def swinging(bend: float) -> Answering:
    """Clients that pull towards a goal, harder where it is far if they bend; attackers push to and fro."""

    def answer(model: np.ndarray, client: str, t: int, epochs: object = None) -> tuple[np.ndarray, float]:
        size = len(model)
        if client in ILL:
            return (3 if t % 2 else -3) * np.sign(rng_for(7, "push").normal(size=size)), 10
        far = rng_for(7, client).normal(size=size) + 3 - model
        stiff = rng_for(7, "stiff").uniform(0, 1, size) ** 2
        noise = 0.002 * rng_for(7, client, t).normal(size=size)
        return 0.05 * far + bend * stiff * far.clip(-4, 4) ** 3 + noise, 10

    return Answering(answer)


@pytest.mark.parametrize(("bend", "share", "nearer"), [(0.0, 1.0, 1.0), (0.01, 0.75, 0.85)])
def test_where_a_history_swings_the_models_own_path_counts(
    bend: float, share: float, nearer: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where updates change in proportion to v, the first estimate is right and counts alone."""
    model = np.zeros(40, np.float32)
    history = record(tmp_path / "h", swinging(bend), CLIENTS, 40, Everything(), model=model)
    decided = plan(history, ILL, beta=0)
    again = list(retrain(decided, swinging(bend)))[-1].model

    def before_the_last() -> tuple[float, ReplayState]:
        """The last round asks everybody, in either case."""
        step = list(replay(decided, swinging(bend)))[-2]
        assert step.replay is not None
        return float(np.linalg.norm(step.model - again)), step.replay

    (distance, state), _ = before_the_last(), monkeypatch.setattr(Blend, "of", lambda first, *_: Blend(first))
    assert state.nearer / state.apart <= share + 1e-6
    assert (bend == 0) == (state.nearer / state.apart > 0.95)
    assert distance <= nearer * before_the_last()[0] * (1 + 1e-3)
