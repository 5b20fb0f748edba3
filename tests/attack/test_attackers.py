import pytest

from fedcrab.attack import Attackers, draw_attackers
from fedcrab.attack.malicious_fleet import parse_rounds
from fedcrab.errors import ConfigError

POOL = [str(i) for i in range(20)]


def test_none_before_the_start_all_from_it():
    attackers = Attackers(frozenset("ab"), start=3)
    assert [attackers.active(t) for t in (0, 2, 3, 100)] == [set(), set(), {"a", "b"}, {"a", "b"}]


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.3, 250, 350), (1.0, 1000, 1000)])
def test_they_act_in_about_their_share_of_rounds(share, least, most):
    attackers = Attackers(frozenset("ab"), share=share)
    assert least <= sum(bool(attackers.active(t)) for t in range(1000)) <= most


def test_the_rounds_follow_from_the_seed_and_not_from_the_start():
    def rounds(**settings):
        attackers = Attackers(frozenset("a"), share=0.5, **settings)
        return [t for t in range(50) if attackers.active(t)]

    assert rounds(seed=1) == rounds(seed=1) != rounds(seed=2)
    assert rounds(seed=1, start=20) == [t for t in rounds(seed=1) if t >= 20]


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 0), (0.1, 2), (0.25, 5), (0.5, 10), (1.0, 20)])
def test_a_fraction_of_the_pool_is_drawn(fraction, count):
    drawn = draw_attackers(POOL, fraction, seed=0)
    assert len(drawn) == count
    assert drawn <= set(POOL)


def test_the_draw_follows_from_the_seed_and_not_from_the_order_of_the_pool():
    assert draw_attackers(POOL, 0.25, 1) == draw_attackers(POOL[::-1], 0.25, 1)
    assert draw_attackers(POOL, 0.25, 1) != draw_attackers(POOL, 0.25, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: parse_rounds(["x"]), "ranges such as 30"),
        (lambda: parse_rounds([-3]), "ranges such as 30"),
        (lambda: parse_rounds(["9-3"]), "ends before it begins"),
        (lambda: Attackers("abc"), "the string 'abc'"),
        (lambda: Attackers(frozenset("a"), start=-1), "start must be round 0 or later, got -1"),
        (lambda: Attackers(frozenset("a"), share=1.5), r"share must be between 0 and 1, got 1\.5"),
        (lambda: draw_attackers(POOL, -0.1, 0), r"fraction must be between 0 and 1, got -0\.1"),
    ],
)
def test_settings_are_checked_where_they_enter(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_schedule_says_when() -> None:
    assert parse_rounds([30]) == {30}
    assert parse_rounds([3, "10-12", " 20 - 21 "]) == {3, 10, 11, 12, 20, 21}
    attackers = Attackers(frozenset("a"), start=11, rounds=parse_rounds([3, "10-12"]))
    assert [t for t in range(20) if attackers.active(t)] == [11, 12]
    often = Attackers(frozenset("a"), share=0.5, rounds=frozenset(range(1000)))
    assert 400 < sum(bool(often.active(t)) for t in range(2000)) < 600
    assert not Attackers(frozenset("a"), rounds=frozenset()).active(0)
