"""When a replay asks clients, how many, and how far it predicts to be from retraining: the rules alone."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcrab.recover.correction import Correction
from fedcrab.recover.estimate import unexplored
from fedcrab.recover.pacing import STRAYED, Distances, Pacing
from fedcrab.recover.schedule import LONGEST, Moment, longest_gap, usual_contacts
from fedcrab.recover.step import Pair, ReplayState

NONE = np.zeros(2, np.float32)


def test_clients_are_asked_at_once_where_the_history_turns_away() -> None:
    """Moved along known directions only, the estimate holds; elsewhere it says nothing."""
    east, north = np.array([1, 0, 0], np.float32), np.array([0, 2, 0], np.float32)
    known = [Pair(1, east, -east)]
    assert unexplored([], east) == 1
    assert unexplored(known, 5 * east) == pytest.approx(0, abs=1e-6)
    assert unexplored(known, east + north) == pytest.approx(2 / np.sqrt(5))
    assert unexplored([*known, Pair(2, east, -east)], east + north) == pytest.approx(2 / np.sqrt(5))
    assert unexplored([*known, Pair(2, north, -east)], east + north) == pytest.approx(0, abs=1e-6)
    state, now = ReplayState(next_contact=9, ask=3), Moment(5, 0, 40)

    def contact(every: int | None, new: float, travelled: float) -> bool:
        pacing = Pacing(every, None, None, trust=False)
        return pacing.contacts(state, now, distances(moved=4.0, unexplored=new, travelled=travelled))

    assert contact(None, 0.36, 14.0)
    assert not contact(None, 0.34, 1.0)
    assert not contact(None, 0.36, 15.0)  # short
    assert not contact(4, 1.0, 1.0)  # fixed beforehand


def test_how_a_replay_settles() -> None:
    """One round of everybody in forty; half of them with trust, unless clients are uneven."""
    even, uneven = (ReplayState(next_contact=9, ask=3, uneven=value) for value in (0.5, 0.7))

    def asked(state: ReplayState, rounds: int, left: int, *, trust: bool = False) -> int:
        pacing, now = Pacing(None, None, None, trust), Moment(rounds - left, 0, rounds)
        return pacing.settling_count(state, now, 11) if pacing.settles(now) else 0

    assert [asked(even, 40, left) for left in (2, 1)] == [0, 11]
    assert [asked(uneven, 40, left) for left in (2, 1)] == [0, 11]
    assert [asked(even, 80, left) for left in (3, 2, 1)] == [0, 11, 11]
    assert [asked(even, 40, left, trust=True) for left in (2, 1)] == [0, 6]
    assert [asked(uneven, 20, left, trust=True) for left in (2, 1)] == [0, 6]  # a short replay
    assert [asked(uneven, 40, left, trust=True) for left in (2, 1)] == [0, 11]


def distances(**some: float) -> Distances:
    usual = {"moved": 1.0, "unexplored": 0.0, "travelled": 1.0, "stored": 1.0}
    return Distances(**{**usual, **some})


def asked_with_trust(rounds: int, first: int, *, turns: bool, **fixed: int) -> dict[int, int]:
    """How many clients each contact asks, of twenty; after each, measurements want the shortest gap."""
    pacing = Pacing(fixed.get("every"), fixed.get("asked"), fixed.get("settle"), trust=True)
    state, asked = pacing.start(first), {}
    for t in range(first + 1, rounds):
        now = Moment(t, first, rounds)
        due = pacing.contacts(state, now, distances(unexplored=1.0 if turns else 0.0))
        if pacing.settles(now) or not due:
            continue
        asked[t] = pacing.contact_count(state, now, 20)
        measured = Correction(NONE, NONE, dict.fromkeys(range(asked[t]), np.zeros(2)), 20, 9, 99)
        state = pacing.after_contact(state, now, measured, step=1.0, stored=1.0, travelled=(1.0, 1.0))
    return asked


@given(st.integers(2, 120), st.integers(0, 100), st.booleans())
def test_trust_has_a_budget_that_leaves_the_usual_contacts(rounds: int, first: int, turns: bool) -> None:
    """Whatever is measured: at most half of five answers per usual contact and one more, no longer gaps."""
    first = min(first, rounds - 1)
    asked, usual = asked_with_trust(rounds, first, turns=turns), usual_contacts(first, rounds)
    assert sum(asked.values()) <= 5 * (1 + len(usual)) / 2
    assert len(asked) >= len(usual)
    for t, count in asked.items():
        assert count == 2 or (count > 2 and rounds - t <= (rounds - first) // 4)
    for one, next_one in pairwise(asked):
        assert next_one - one <= min(LONGEST, longest_gap(Moment(one, first, rounds)))


def test_what_the_budget_of_trust_is_spent_on() -> None:
    calm = asked_with_trust(40, 0, turns=False)
    assert calm == {**dict.fromkeys((*range(1, 31, 3), 36, 38), 2), 31: 3, 34: 3}
    turning = asked_with_trust(40, 0, turns=True)
    assert [*turning][:4] == [1, 2, 3, 4]  # at once, until only the usual contacts can be paid
    assert sum(turning.values()) == 30 == 5 * (1 + len(usual_contacts(0, 40))) // 2
    fixed = asked_with_trust(40, 0, turns=True, every=1, asked=9)
    assert sum(fixed.values()) == 38 * 9  # who says how many are asked gets as many


def test_a_history_that_varies_too_much_is_not_relied_on() -> None:
    """From then on all are asked, however many the budget of trust allows; a fixed pace stays fixed."""
    now, honest = Moment(6, 0, 40), 12
    for trust in (False, True):
        pacing = Pacing(None, None, None, trust)
        for spread, doubted in ((0.3, False), (0.6, True)):  # of noise 0.13 and 0.27
            rows = dict.fromkeys("abcde", np.zeros(2, np.float32))
            measured = Correction(NONE, NONE, rows, honest, spread, 0.1)
            more = {"step": 0.1, "stored": 1.0, "travelled": (1.0, 1.0)}
            state = pacing.after_contact(pacing.start(0), now, measured, **more)
            assert measured.noise == pytest.approx(spread * np.sqrt(1 / 12 + (1 - 5 / 12) / 5))
            assert state.doubted is (measured.noise > 0.2) is doubted
            early = pacing.after_contact(pacing.start(0), Moment(5, 0, 40), measured, **more)
            assert not early.doubted
            usual = pacing.count(state, Moment(7, 0, 40), honest, distances())
            assert usual == (honest if doubted else 0)
            assert pacing.count(state, Moment(7, 0, 40), honest, distances(stored=8.1)) == honest
            assert pacing.count(state, Moment(7, 0, 40), honest, distances(moved=0.0)) == 0
            apart = pacing.after_contact(state, Moment(7, 0, 40), measured, alone=0.2, **more)
            assert (apart.answers, apart.ignored) == (state.answers, 1)  # the budget is for the others
            assert apart.step_error == pytest.approx(0.2 / np.sqrt(12))
            calm = Correction(NONE, NONE, rows, honest, 0.01, 0.1)
            assert pacing.after_contact(state, Moment(7, 0, 40), calm, **more).doubted is doubted
            assert (
                Pacing(9, 2, None, trust).count(state, Moment(7, 0, 40), honest, distances(stored=9.0)) == 0
            )


def test_short_replays_have_contact_in_every_round() -> None:
    assert usual_contacts(0, 19) == tuple(range(1, 18))
    assert usual_contacts(21, 40) == tuple(range(22, 39))
    assert len(usual_contacts(20, 40)) == 4


def test_gaps_shrink_at_the_end() -> None:
    assert usual_contacts(0, 40) == (1, 6, 11, 16, 21, 26, 30, 33, 35, 37, 38)
    assert usual_contacts(20, 40) == (21, 26, 31, 36)
    assert usual_contacts(39, 40) == usual_contacts(0, 0) == ()


def test_the_predicted_distance_adds_up() -> None:
    """What one training differs by from the next in every round, and what contacts and estimates add."""
    pacing, now = Pacing(None, None, None, trust=False), Moment(1, 0, 40)
    measured = Correction(NONE, NONE, {"a": np.zeros(2), "b": np.zeros(2)}, 8, 4.0, 5.0)
    state = pacing.after_contact(pacing.start(0), now, measured, step=1.0, stored=1.0, travelled=(1.0, 1.0))
    noise = 16 / 2 * (1 - 2 / 8)
    assert state.error**2 == pytest.approx(16 / 8 + noise)
    missed = STRAYED * np.sqrt(25 - noise)
    later = pacing.after_estimate(state, moved=True, honest=8)
    assert later.step_error**2 == pytest.approx(16 / 8 + missed**2)
    assert later.error**2 == pytest.approx(2 * 16 / 8 + noise + missed**2)
    later = pacing.after_estimate(later, moved=True, honest=8)
    assert later.error**2 == pytest.approx(
        3 * 16 / 8 + noise + (2 * missed) ** 2
    )  # these are not independent
    later = pacing.after_contact(later, now, measured, step=1.0, stored=1.0, travelled=(1.0, 1.0))
    assert later.error**2 == pytest.approx(4 * 16 / 8 + 2 * noise + (2 * missed) ** 2)
    assert pacing.after_estimate(later, moved=False, honest=8).error == later.error
