"""Which data of clients stay in memory."""

import pytest
import torch

from fedcrab.simulate.engines.client_cache import SELDOM, ClientCache


def hits(cache, clients, rounds):
    """How often in the last of these rounds a client's tensor, of 10 numbers, was there."""
    made = []
    for _ in range(rounds):
        made.clear()
        for client in clients:
            assert len(cache.get(client, lambda client=client: made.append(client) or torch.zeros(10))) == 10
    return len(clients) - len(made)


def test_what_is_kept_when_all_fit():
    cache = ClientCache(most_bytes=3 * 40)
    assert hits(cache, ["a", "b", "a", "c", "b"], 1) == 2
    assert hits(cache, ["a", "b", None, None, "c"], 1) == 3


@pytest.mark.parametrize("clients", [11, 20, 100])
def test_clients_in_turn_find_almost_all_that_fits(clients):
    """The ones used last would find none."""
    cache = ClientCache(most_bytes=10 * 40)
    assert hits(cache, range(clients), 30) >= 9 - clients // SELDOM
    assert cache._bytes == sum(t.nbytes for t in cache._made.values()) <= 10 * 40


def test_a_cache_follows_other_clients():
    cache = ClientCache(most_bytes=10 * 40)
    hits(cache, range(10), 5)
    assert hits(cache, range(100, 105), 40) == 5


def test_what_is_larger_than_the_cache_is_not_kept():
    cache = ClientCache(most_bytes=39)
    assert hits(cache, "aaa", 2) == 0
