"""The laws of every attack."""

import copy

import numpy as np
import pytest

from attack.tiny import FixedFleet, random_fleet
from fedcrab.attack import (
    Attackers,
    Trigger,
    backdoor,
    boosted,
    dba,
    evade,
    fang_krum,
    fang_trim,
    ipm,
    label_flip,
    lie,
    min_max,
    min_sum,
    neurotoxin,
    noise_trim,
    pgd,
    sign_flip,
)
from fedcrab.errors import ConfigError

SMALL = Trigger(size=2)
DATA = {
    "backdoor": lambda f, a: backdoor(f, a, trigger=SMALL),
    "backdoor, random": lambda f, a: backdoor(f, a, trigger=SMALL, labels="random", classes=3),
    "backdoor, one class": lambda f, a: backdoor(f, a, trigger=SMALL, labels="all-of-one-class", source=1),
    "backdoor, boosted": lambda f, a: backdoor(f, a, trigger=SMALL, boost=3.0),
    "dba": lambda f, a: dba(f, a, trigger=SMALL, parts=2),
    "pgd": lambda f, a: pgd(f, a, trigger=SMALL),
    "neurotoxin": lambda f, a: neurotoxin(f, a, trigger=SMALL, coordinates=0.5),
    "label_flip": lambda f, a: label_flip(f, a, classes=3),
}
MODEL = {
    "noise_trim, add": lambda f, a: noise_trim(f, a),
    "noise_trim, replace": lambda f, a: noise_trim(f, a, mode="replace"),
    "fang_trim": fang_trim,
    "fang_krum": fang_krum,
    "lie": lie,
    "min_max, unit": lambda f, a: min_max(f, a, direction="unit"),
    "min_max, deviation": lambda f, a: min_max(f, a),
    "min_max, sign": lambda f, a: min_max(f, a, direction="sign"),
    "min_sum, unit": lambda f, a: min_sum(f, a, direction="unit"),
    "min_sum, deviation": lambda f, a: min_sum(f, a),
    "min_sum, sign": lambda f, a: min_sum(f, a, direction="sign"),
    "sign_flip": sign_flip,
    "ipm": ipm,
    "evade": evade,
    "boosted": lambda f, a: boosted(f, a, factor=2.0),
}
ATTACKS = {**DATA, **MODEL}
DRAWN = {"backdoor", "backdoor, random", "backdoor, boosted", "dba", "noise_trim, add", "noise_trim, replace"}
DRAWN |= {"fang_trim", "pgd", "neurotoxin"}

FLEET = random_fleet()
CLIENTS = FLEET.clients
EVIL = frozenset("bf")
START = np.random.default_rng(0).normal(0, 0.1, FLEET.size).astype(np.float32)


@pytest.fixture(params=ATTACKS)
def name(request):
    return request.param


def honest(round=3, clients=CLIENTS):
    return FLEET.train(START, clients, round=round)


def attacked(name, round=3, clients=CLIENTS, **when):
    return ATTACKS[name](FLEET, Attackers(EVIL, **when)).train(START, clients, round=round)


def assert_same(one, other):
    assert one.clients == other.clients
    np.testing.assert_array_equal(one.vectors.view(np.uint32), other.vectors.view(np.uint32))
    np.testing.assert_array_equal(one.weights, other.weights)


def test_honest_rows_pass_bit_for_bit_and_every_attacker_sends_something_else(name):
    sent, expected = attacked(name), honest()
    assert_same(sent.without(EVIL), expected.without(EVIL))
    assert (sent.only(EVIL).vectors != expected.only(EVIL).vectors).any(axis=1).all()


def test_shapes_and_dtypes_stay(name):
    sent, expected = attacked(name), honest()
    assert sent.clients == expected.clients
    assert sent.vectors.shape == expected.vectors.shape
    assert sent.vectors.dtype == np.float32
    assert np.isfinite(sent.vectors).all()
    np.testing.assert_array_equal(sent.weights, expected.weights)


def test_before_the_start_attackers_are_honest(name):
    assert_same(attacked(name, round=4, start=5), honest(4))
    assert_same(attacked(name, round=5, start=5), attacked(name, round=5))


def test_attackers_act_in_their_share_of_rounds_and_are_honest_in_the_others(name):
    when = Attackers(EVIL, share=0.5)
    acted = [not np.array_equal(attacked(name, t, share=0.5).vectors, honest(t).vectors) for t in range(12)]
    assert acted == [bool(when.active(t)) for t in range(12)]
    assert 0 < sum(acted) < 12


def test_the_same_seed_gives_the_same_bits(name):
    assert_same(attacked(name), attacked(name))


def test_another_seed_another_draw_where_there_is_one(name):
    same = np.array_equal(attacked(name, seed=1).vectors, attacked(name, seed=2).vectors)
    assert same == (name not in DRAWN)


def test_the_order_of_asking_does_not_matter(name):
    assert_same(attacked(name, clients=CLIENTS[::-1]), attacked(name))


def test_attackers_that_do_not_take_part_change_nothing(name):
    clients = [c for c in CLIENTS if c not in EVIL]
    assert_same(attacked(name, clients=clients), honest(clients=clients))


def test_one_of_two_attackers_taking_part_attacks_alone(name):
    clients = [c for c in CLIENTS if c != "f"]
    sent, expected = attacked(name, clients=clients), honest(clients=clients)
    assert_same(sent.without(EVIL), expected.without(EVIL))
    assert not np.array_equal(sent.only("b").vectors, expected.only("b").vectors)


def test_a_round_without_honest_clients_is_answered(name):
    for clients in (("b",), ("b", "f")):
        sent = attacked(name, clients=clients)
        assert sent.clients == clients
        assert np.isfinite(sent.vectors).all()


def test_one_honest_client_is_enough(name):
    sent = attacked(name, clients=("a", "b", "f"))
    assert_same(sent.only("a"), honest(clients=("a",)))
    assert np.isfinite(sent.vectors).all()


@pytest.mark.parametrize("name", MODEL)
def test_clients_that_all_stand_still_are_no_trouble(name):
    still = FixedFleet({c: (np.zeros(3, np.float32), 1) for c in CLIENTS})
    sent = ATTACKS[name](still, Attackers(EVIL)).train(np.ones(3, np.float32), CLIENTS, round=0)
    assert np.isfinite(sent.vectors).all()


def test_the_inner_fleet_is_left_as_it_was(name):
    expected = {c: [part.copy() for part in FLEET.examples(c)] for c in CLIENTS}
    attacked(name)
    for c in CLIENTS:
        np.testing.assert_array_equal(FLEET.examples(c)[0], expected[c][0])
        np.testing.assert_array_equal(FLEET.examples(c)[1], expected[c][1])


def test_what_else_the_inner_fleet_has_is_passed_on(name):
    fleet = ATTACKS[name](FLEET, Attackers(EVIL))
    assert fleet.clients == CLIENTS
    assert fleet.size == FLEET.size
    assert fleet.examples("b")[0] is FLEET.examples("b")[0]
    with pytest.raises(AttributeError):
        fleet.no_such_thing  # noqa: B018
    assert copy.deepcopy(fleet).attackers == fleet.attackers


def test_epochs_are_passed_on(name):
    FLEET.asked.clear()
    ATTACKS[name](FLEET, Attackers(EVIL)).train(START, CLIENTS, round=0, epochs=2)
    assert FLEET.asked == [2]


def test_an_attack_goes_around_an_attack_and_replaced_examples_go_through(name):
    inner = sign_flip(FLEET, Attackers(frozenset("c")))
    fleet = ATTACKS[name](inner, Attackers(EVIL))
    sent = fleet.train(START, CLIENTS, round=0)
    np.testing.assert_array_equal(sent.only("c").vectors, -honest().only("c").vectors)
    swapped = fleet.with_examples({"a": FLEET.examples("d")}).train(START, CLIENTS, round=0)
    np.testing.assert_array_equal(swapped.only("a").vectors, honest().only("d").vectors)
    np.testing.assert_array_equal(swapped.only("c").vectors, -honest().only("c").vectors)


@pytest.mark.parametrize("data_attack", DATA)
def test_an_attack_on_examples_refuses_a_fleet_that_shows_none(data_attack):
    for hidden in (FixedFleet({}), sign_flip(FixedFleet({}), Attackers(EVIL))):
        with pytest.raises(ConfigError, match="FixedFleet does not expose its clients' examples"):
            DATA[data_attack](hidden, Attackers(EVIL))
