"""Windows, rounds and clients by hand."""

import pytest

from fedcrab import ConfigError, Every, Everything, Selective
from fedcrab.history.selection import from_table, to_table

NAN, INF = float("nan"), float("inf")


def test_a_window_closes_when_the_loss_has_fallen_by_alpha() -> None:
    crab = Selective(alpha=0.1)
    assert crab.closes(2.0, 1.8, 1)
    assert not crab.closes(2.0, 1.81, 1)


@pytest.mark.parametrize("loss", [NAN, INF, -INF])
def test_a_loss_that_is_not_finite_closes_nothing_before_the_cap(loss: float) -> None:
    crab = Selective(max_window=3)
    assert not crab.closes(2.0, loss, 2)
    assert crab.closes(2.0, loss, 3)
    assert not crab.closes(loss, 0.1, 2)


def test_the_rounds_with_the_largest_change_are_chosen_ties_to_the_earlier() -> None:
    chosen = Selective(rounds=0.6).choose({0: 0.1, 1: 0.5, 2: 0.5, 3: 0.5, 4: 0.2}, seen=0, chosen=0)
    assert chosen == (1, 2, 3)


def test_the_remainder_is_carried_from_window_to_window() -> None:
    crab, chosen, counts = Selective(rounds=0.6), 0, []
    for t in range(10):
        taken = crab.choose({t: 1.0}, seen=t, chosen=chosen)
        chosen += len(taken)
        counts.append(chosen)
    assert counts == [round(0.6 * n) for n in range(1, 11)]


def test_a_change_that_is_not_a_number_is_chosen_last() -> None:
    assert Selective(rounds=0.5).choose({0: NAN, 1: 0.0}, seen=0, chosen=0) == (1,)


def test_the_nearest_clients_are_selected_ties_to_the_smaller_id() -> None:
    assert Selective(clients=0.5).select([0.1, 0.9, 0.9, 0.9]) == (False, True, True, False)
    assert Selective(clients=0.1).select([-1.0, -1.0]) == (True, False)
    assert Selective(clients=0.5).select([0.1, 0.2, 0.3, 0.4, 0.5]) == (False, False, False, True, True)
    assert Selective().select([]) == ()


def test_every_keeps_each_nth_round_and_the_updates_of_the_first() -> None:
    every = Every(3)
    kept = [t for t in range(10) if every.choose({t: 1.0}, seen=t, chosen=0)]
    assert kept == [0, 3, 6, 9]
    assert [t for t in range(10) if every.keeps_updates(t)] == [0]
    assert every.select([0.1, -1.0]) == (True, True)


@pytest.mark.parametrize("selection", [Selective(alpha=0.2, max_window=3), Every(4), Everything()])
def test_a_selection_survives_being_written_down(selection: object) -> None:
    assert from_table(to_table(selection)) == selection


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Selective(alpha=1.0), "alpha"),
        (lambda: Selective(rounds=0), "rounds"),
        (lambda: Selective(clients=1.5), "clients"),
        (lambda: Selective(clients=NAN), "clients"),
        (lambda: Selective(max_window=0), "max_window"),
        (lambda: Every(0), "n must"),
        (lambda: from_table({"kind": "some"}), "selective, every, everything"),
        (lambda: from_table({"kind": "every", "m": 2}), "every"),
    ],
)
def test_a_setting_out_of_range_is_named(make: object, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        make()
