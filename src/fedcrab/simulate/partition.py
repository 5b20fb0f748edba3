"""Splits training examples among clients: seeded, each example at most once, at least one per client.

A partition is a tuple of index arrays, one per client, into the training part of a data set.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for

Parts = tuple[NDArray[np.int64], ...]
Labels = NDArray[np.int64]


def iid(labels: Labels, *, clients: int, seed: int) -> Parts:
    """Distribute the examples at random, in equal numbers up to one."""
    _check(labels, clients)
    return _sorted(np.array_split(rng_for(seed, "partition").permutation(len(labels)), clients))


def dirichlet(labels: Labels, *, clients: int, concentration: float, seed: int) -> Parts:
    """Distribute each class among the clients by shares drawn from Dirichlet(concentration).

    Near 0, each class belongs to one client; at infinity, all clients have the same mixture. A client without
    examples gets one from the client with the most.
    """
    _check(labels, clients)
    if not concentration > 0:
        raise ConfigError(f"concentration must be above 0, got {concentration}")
    rng = rng_for(seed, "partition")
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        shares = rng.dirichlet(np.full(clients, concentration))
        shares = np.full(clients, 1 / clients) if not np.isfinite(shares).all() else shares
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
    return _sorted(_none_empty([np.concatenate(pieces) for pieces in parts]))


def shards(labels: Labels, *, clients: int, classes_each: int, seed: int) -> Parts:
    """Sort the examples by class, cut them into clients x classes_each shards, and give each client as many.

    So a client sees about ``classes_each`` classes (McMahan et al., AISTATS 2017, use 2).
    """
    _check(labels, clients * max(classes_each, 1))
    if classes_each < 1:
        raise ConfigError(f"classes_each must be 1 or more, got {classes_each}")
    rng = rng_for(seed, "partition")
    mixed = rng.permutation(len(labels))
    cut = np.array_split(mixed[np.argsort(labels[mixed], kind="stable")], clients * classes_each)
    dealt = rng.permutation(len(cut)).reshape(clients, classes_each)
    return _sorted([np.concatenate([cut[i] for i in row]) for row in dealt])


def power_law(labels: Labels, *, clients: int, exponent: float, seed: int) -> Parts:
    """Give clients sizes that fall as rank^-exponent, in random order, with equal mixtures."""
    _check(labels, clients)
    if not exponent >= 0:
        raise ConfigError(f"exponent must be 0 or more, got {exponent}")
    rng = rng_for(seed, "partition")
    sizes = rng.permutation(np.arange(1, clients + 1, dtype=np.float64) ** -exponent)
    spare = len(labels) - clients  # every client gets one example first
    cuts = np.floor(np.cumsum(sizes / sizes.sum()) * spare).astype(np.int64) + np.arange(1, clients + 1)
    return _sorted(np.split(rng.permutation(len(labels)), cuts[:-1]))


def limited(parts: Parts, *, most: int, seed: int) -> Parts:
    """Return the same partition with at most ``most`` examples per client, drawn at random."""
    if most < 1:
        raise ConfigError(f"the limit must be at least 1 example per client, got {most}")
    return _sorted(
        [rng_for(seed, "limit", client).permutation(part)[:most] for client, part in enumerate(parts)]
    )


def counts(labels: Labels, parts: Parts, *, classes: int) -> NDArray[np.int64]:
    """Return how many examples of each class each client has: (clients, classes)."""
    return np.array([np.bincount(labels[part], minlength=classes) for part in parts], np.int64)


def _check(labels: Labels, needed: int) -> None:
    if needed < 1:
        raise ConfigError("a partition needs at least 1 client")
    if needed > len(labels):
        raise ConfigError(
            f"{len(labels)} training examples are too few for {needed} parts; ask for fewer clients"
        )


def _none_empty(parts: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    for i, part in enumerate(parts):
        if not len(part):
            richest = max(range(len(parts)), key=lambda j: len(parts[j]))
            parts[i], parts[richest] = parts[richest][-1:], parts[richest][:-1]
    return parts


def _sorted(parts: Sequence[NDArray[np.int64]]) -> Parts:
    return tuple(np.sort(part) for part in parts)
