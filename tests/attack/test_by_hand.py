"""Every attack on updates by hand: clients a and b honest, c the attacker, two parameters.

The honest mean is (2, 0), the deviation (1, 2).
"""

from statistics import NormalDist

import numpy as np
import pytest

from attack.tiny import FixedFleet
from fedcrab.attack import (
    Attackers,
    boosted,
    evade,
    fang_krum,
    fang_trim,
    ipm,
    lie,
    min_max,
    min_sum,
    noise_trim,
    sign_flip,
)
from fedcrab.attack.untargeted import lie_factor

FLEET = FixedFleet({"a": ([1, 2], 1), "b": ([3, -2], 1), "c": ([5, 7], 2)})
EVIL = Attackers(frozenset("c"))


def sent(attack, fleet=FLEET, model=(0, 0), clients="abc", **settings):
    updates = attack(fleet, EVIL, **settings).train(np.float32(model), tuple(clients), round=0)
    return updates.vectors[updates.clients.index("c")]


def test_sign_flip():
    np.testing.assert_array_equal(sent(sign_flip), [-5, -7])


def test_boosted():
    np.testing.assert_array_equal(sent(boosted, factor=3.0), [15, 21])


def test_ipm():
    np.testing.assert_array_equal(sent(ipm, scale=0.5), [-1, 0])


def test_lie():
    np.testing.assert_array_equal(sent(lie, z=1.5), [2 - 1.5 * 1, 0 - 1.5 * 2])
    # n = 3, m = 1: q = ⌊2.5⌋ − 1 = 1, z = Φ⁻¹((3 − 1 − 1) / (3 − 1)) = Φ⁻¹(1/2) = 0
    np.testing.assert_array_equal(sent(lie), [2, 0])


def test_the_z_of_lie():
    # n = 50, m = 12: q = 26 − 12 = 14, (50 − 12 − 14) / 38 = 24/38, and Φ(0.336) = 0.6316
    assert lie_factor(38, 12) == pytest.approx(0.336, abs=5e-4)
    assert NormalDist().cdf(lie_factor(38, 12)) == pytest.approx(24 / 38)
    # n = 20, m = 5: q = 11 − 5 = 6, (15 − 6) / 15 = 0.6, Φ⁻¹ = 0.2533
    assert lie_factor(15, 5) == pytest.approx(0.2533, abs=5e-5)
    # n = 10, m = 6: a majority needs nobody; half a client from certain, 1 − 1/8
    assert NormalDist().cdf(lie_factor(4, 6)) == pytest.approx(7 / 8)
    # n = 2, m = 1: the one honest client would have to be further out; half a client from nobody
    assert lie_factor(1, 1) == pytest.approx(0.0)


def test_min_max():
    # p = (−1, −2), R = ‖a − b‖² = 20; for a: 5γ² + 6γ + 5 − 20 = 0, for b: 5γ² − 6γ + 5 − 20 = 0
    gamma = (-3 + np.sqrt(9 + 75)) / 5
    np.testing.assert_allclose(sent(min_max), [2 - gamma, -2 * gamma], rtol=1e-6)
    # p = (−1, 0): for a: γ² − 2γ + 5 − 20 = 0, for b: γ² + 2γ + 5 − 20 = 0, so γ = 3
    np.testing.assert_allclose(sent(min_max, direction="unit"), [-1, 0], atol=1e-6)
    np.testing.assert_allclose(sent(min_max, direction="sign"), [-1, 0], atol=1e-6)


def test_min_sum():
    # Σ‖μ − u‖² = 10, R = 20; deviation: 2·5·γ² = 10, unit and sign: 2·1·γ² = 10
    np.testing.assert_allclose(sent(min_sum), [1, -2], rtol=1e-6)
    np.testing.assert_allclose(sent(min_sum, direction="unit"), [2 - np.sqrt(5), 0], rtol=1e-6)
    np.testing.assert_allclose(sent(min_sum, direction="sign"), [2 - np.sqrt(5), 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("start", "least", "most"),
    [
        (4, 5 / 2 - 4, 5 - 4),  # s > 0, honest models 5 and 7: in [min/2, min]
        (-9, -16 + 9, -8 + 9),  # s > 0, honest models −8 and −6: in [2·min, min]
        (-1, 0 + 1, 0 + 1),  # s > 0, honest models 0 and 2: nothing but 0
    ],
)
def test_fang_trim_where_the_honest_mean_goes_up(start, least, most):
    drawn, level = sent(fang_trim, model=(start, 3))
    assert least <= drawn <= most
    assert level == 0  # the honest mean stands still there


@pytest.mark.parametrize(
    ("start", "least", "most"),
    [
        (9, 8 - 9, 16 - 9),  # s < 0, honest models 8 and 6: in [max, 2·max]
        (-4, -5 + 4, -2.5 + 4),  # s < 0, honest models −5 and −7: in [max, max/2]
    ],
)
def test_fang_trim_where_the_honest_mean_goes_down(start, least, most):
    down = FixedFleet({"a": ([-1], 1), "b": ([-3], 1), "c": ([0], 1)})
    assert least <= sent(fang_trim, down, model=(start,))[0] <= most


def test_fang_krum_that_never_succeeds_stops_below_the_least_strength():
    # Krum of three tolerates none and counts one neighbour; ‖a − b‖² = 20, s = (1, 0), λ starts at ‖b‖ = √13.
    # There c is at (1 + λ)² + 4 = 25.2 from a, its nearest, and loses to a and b; at √13/2 and below c and a
    # are each other's nearest, so their scores tie, and c is not ahead
    np.testing.assert_allclose(sent(fang_krum), [-np.sqrt(13) / 2**19, 0], rtol=1e-6)


def test_fang_krum_with_helpers():
    # c and d send one point. Of two neighbours: c has d at 0 and a at 25.2, a has b at 20 and c at 25.2
    fleet = FixedFleet({"a": ([1, 2], 1), "b": ([3, -2], 1), "c": ([5, 7], 2), "d": ([5, 7], 2)})
    updates = fang_krum(fleet, Attackers(frozenset("cd"))).train(np.zeros(2, np.float32), "abcd", round=0)
    np.testing.assert_allclose(updates.only("cd").vectors, [[-np.sqrt(13), 0]] * 2, rtol=1e-6)


def test_noise_trim_disturbs_its_fraction_of_coordinates():
    update = np.random.default_rng(0).normal(0, 3, 20_000).astype(np.float32)
    fleet = FixedFleet({"c": (update, 1)})
    added = sent(noise_trim, fleet, clients="c", scale=2.0) - update
    assert np.count_nonzero(added) == 2000
    assert added[added != 0].std() == pytest.approx(2 * update.std(), rel=0.1)
    replaced = sent(noise_trim, fleet, clients="c", mode="replace", scale=0.0)
    assert np.count_nonzero(replaced != update) == 2000
    assert not replaced[replaced != update].any()


def test_noise_trim_draws_coordinates_anew_each_round():
    fleet = noise_trim(FixedFleet({"c": (np.arange(100.0), 1)}), EVIL)
    first, second = (fleet.train(np.zeros(100, np.float32), "c", round=t).vectors[0] for t in (0, 1))
    places = [set(np.flatnonzero(v != np.arange(100))) for v in (first, second)]
    assert places[0] != places[1]


def test_evade():
    # shares 1/4, 1/4, 1/2: H = (1.5, 0), P = 1/2; ρ = 1: along H −P·ρ²/‖H‖ = −1/3, across √(1 − 1/9)
    fleet = FixedFleet({"a": ([4, 0], 1), "b": ([2, 0], 1), "c": ([1, 1], 2)})
    np.testing.assert_allclose(sent(evade, fleet, norm=1.0), [-1 / 3, np.sqrt(8) / 3], rtol=1e-6)
