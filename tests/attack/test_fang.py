"""Fang et al.'s attacks do to their rules what they are for."""

import numpy as np
import pytest

from attack.tiny import FixedFleet
from fedcrab.aggregate import krum, trimmed_mean
from fedcrab.attack import Attackers, fang_krum, fang_trim


def honest_round(seed, n=20, d=40):
    rng = np.random.default_rng(seed)
    towards = rng.normal(0, 0.2, d)  # clients scatter more than they agree, as in training
    fleet = FixedFleet({f"{i:02}": (towards + rng.normal(0, 1, d), 1) for i in range(n)})
    return fleet, tuple(fleet.answers), rng.normal(0, 1, d).astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
def test_krum_selects_the_attackers(seed):
    fleet, clients, model = honest_round(seed)
    evil = Attackers(frozenset(clients[:6]))
    sent = fang_krum(fleet, evil).train(model, clients, round=0)
    chosen = krum(byzantine=6)(sent.vectors, sent.weights)
    np.testing.assert_array_equal(chosen, sent.vectors[0])
    assert chosen @ sent.vectors[6:].mean(axis=0) < 0
    assert np.abs(chosen).max() > 1e-3


@pytest.mark.parametrize("seed", range(5))
def test_krum_would_not_select_them_at_twice_the_strength(seed):
    fleet, clients, model = honest_round(seed)
    sent = fang_krum(fleet, Attackers(frozenset(clients[:6]))).train(model, clients, round=0)
    vectors = sent.vectors.copy()
    vectors[:6] *= 2
    assert not np.array_equal(krum(byzantine=6)(vectors, sent.weights), vectors[0])


def test_more_attackers_than_krum_tolerates_are_no_trouble():
    fleet, clients, model = honest_round(0)
    sent = fang_krum(fleet, Attackers(frozenset(clients[:15]))).train(model, clients, round=0)
    np.testing.assert_array_equal(krum(byzantine=8)(sent.vectors, sent.weights), sent.vectors[0])


@pytest.mark.parametrize("seed", range(5))
def test_the_trimmed_mean_moves_against_the_honest_mean(seed):
    fleet, clients, model = honest_round(seed)
    honest = fleet.train(model, clients, round=0)
    sent = fang_trim(fleet, Attackers(frozenset(clients[:6]))).train(model, clients, round=0)
    rule = trimmed_mean(trim=6)
    moved = rule(sent.vectors, sent.weights) - rule(honest.vectors, honest.weights)
    assert np.mean(np.sign(moved) == -np.sign(sent.vectors[6:].mean(axis=0))) > 0.9


def test_fang_trim_lies_just_outside_the_honest_models():
    fleet, clients, model = honest_round(0)
    sent = fang_trim(fleet, Attackers(frozenset(clients[:6]))).train(model, clients, round=0)
    models = model + sent.vectors
    evil, honest = models[:6], models[6:]
    up = sent.vectors[6:].mean(axis=0) > 0
    assert (evil <= honest.min(axis=0) + 1e-5)[:, up].all()
    assert (evil >= honest.max(axis=0) - 1e-5)[:, ~up].all()
    assert len(np.unique(evil[:, 0])) == 6  # each draws its own
