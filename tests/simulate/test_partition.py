"""Laws of every partition: seeded, each example at most once, no client without any."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcrab.errors import ConfigError
from fedcrab.simulate.partition import counts, dirichlet, iid, limited, power_law, shards

KINDS = {
    "iid": iid,
    "dirichlet 0.01": lambda *a, **k: dirichlet(*a, concentration=0.01, **k),
    "dirichlet 100": lambda *a, **k: dirichlet(*a, concentration=100, **k),
    "shards": lambda *a, **k: shards(*a, classes_each=2, **k),
    "power law 0": lambda *a, **k: power_law(*a, exponent=0, **k),
    "power law 2": lambda *a, **k: power_law(*a, exponent=2, **k),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_laws(kind, data):
    clients = data.draw(st.integers(1, 30))
    size = data.draw(st.integers(2 * clients, 200))
    seed = data.draw(st.integers(0, 2**40))
    labels = np.random.default_rng(seed).integers(0, 7, size)
    parts = KINDS[kind](labels, clients=clients, seed=seed)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(size))
    again = KINDS[kind](labels, clients=clients, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    table = counts(labels, parts, classes=7)
    assert table.shape == (clients, 7)
    assert np.array_equal(table.sum(0), np.bincount(labels, minlength=7))


LABELS = np.repeat(np.arange(10), 100)


def test_iid_is_even():
    assert {len(part) for part in iid(LABELS, clients=7, seed=0)} == {142, 143}


def test_the_concentration_says_how_mixed_the_clients_are():
    def classes_seen(concentration):
        parts = dirichlet(LABELS, clients=10, concentration=concentration, seed=0)
        return np.mean((counts(LABELS, parts, classes=10) > 0).sum(1))

    assert classes_seen(0.05) < 4 < 9.5 < classes_seen(100)


def test_shards_give_a_client_few_classes():
    parts = shards(LABELS, clients=10, classes_each=2, seed=0)
    assert ((counts(LABELS, parts, classes=10) > 0).sum(1) <= 2).all()


def test_power_law_sizes():
    sizes = sorted(len(part) for part in power_law(LABELS, clients=10, exponent=1, seed=0))
    assert sizes[-1] > 5 * sizes[0]


def test_a_limit_keeps_a_part_of_each():
    parts = power_law(LABELS, clients=10, exponent=1, seed=0)
    fewer = limited(parts, most=40, seed=0)
    for part, kept in zip(parts, fewer, strict=True):
        assert len(kept) == min(40, len(part))
        assert set(kept) <= set(part)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: iid(LABELS, clients=1001, seed=0), "too few for 1001"),
        (lambda: iid(LABELS, clients=0, seed=0), "at least 1 client"),
        (lambda: dirichlet(LABELS, clients=3, concentration=0, seed=0), "above 0, got 0"),
        (lambda: dirichlet(LABELS, clients=3, concentration=float("nan"), seed=0), "above 0, got nan"),
        (lambda: shards(LABELS, clients=3, classes_each=0, seed=0), "classes_each"),
        (lambda: power_law(LABELS, clients=3, exponent=-1, seed=0), "exponent"),
        (lambda: limited(iid(LABELS, clients=3, seed=0), most=0, seed=0), "got 0"),
    ],
)
def test_what_cannot_be_is_refused(ask, says):
    with pytest.raises(ConfigError, match=says):
        ask()
