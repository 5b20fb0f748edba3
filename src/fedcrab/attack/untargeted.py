"""Noise-trim: what the paper evaluates under the name Trim attack.

    sends u[k] + ε_k (mode `add`) or ε_k (mode `replace`) at a fraction of coordinates k, elsewhere u[k]
    ε_k ~ N(0, (s·σ_u)²)

u the attacker's own update, σ_u the deviation of its coordinates, s `scale`. The coordinates are drawn again
for each attacker and round, 10% by default. Not the Trim attack of Fang et al.; that one is fang_trim.
Rounds without honest clients are attacked in the same way.

Inner-product manipulation: the honest mean backwards, scaled.

    sends −ε·μ

μ the mean of the honest updates, ε `scale`: small slips past distance-based rules, more than (n − m)/m turns
the mean around.
Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI
2019.
In a round without honest clients μ is the mean of the attackers' own updates.

Label flipping: an attacker trains on mirrored labels.

    y → L − 1 − y

L (`classes`) the number of classes; all of its examples.
Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX Security 2020
(baseline).
An attacker that does not take part, or does not act, is honest. Rounds without honest clients work alike.

A Little Is Enough: as far from the mean as honest clients scatter anyway.

    sends μ − z·σ,   z = Φ⁻¹((n − m − q) / (n − m)),   q = ⌊n/2 + 1⌋ − m

μ, σ the coordinate-wise mean and deviation (over n − m, not n − m − 1) of the honest updates; n participants,
m of them attacking; q the honest clients that must lie further out for the attackers to sit in the majority.
Baruch, Baruch, Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS 2019.
Departs from it: z is infinite when attackers are the majority (q ≤ 0) and minus infinity when all honest
clients would have to be further out; the share is kept half a client away from 0 and 1.
In a round without honest clients the attackers' own updates are used instead.

Sign flipping: an attacker sends its own update backwards.

    sends −u

Li et al., "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning", AAAI 2019.
Rounds without honest clients are attacked in the same way.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.malicious_fleet import (
    Attackers,
    CraftedFleet,
    DataFleet,
    Examples,
    PoisonedDataFleet,
    RoundView,
    deviation,
    mean,
    poison_examples,
)
from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId, Fleet, Vector


def ipm(fleet: Fleet, attackers: Attackers, *, scale: float = 0.5) -> CraftedFleet:
    """Return a fleet whose attackers send −ε·μ."""
    if not (np.isfinite(scale) and scale > 0):
        raise ConfigError(f"scale must be more than 0, got {scale}")
    return CraftedFleet(fleet, attackers, lambda scene: -scale * mean(scene.seen))


def label_flip(fleet: DataFleet, attackers: Attackers, *, classes: int) -> PoisonedDataFleet:
    """Return a fleet whose attackers train on mirrored labels."""
    if classes < 2:
        raise ConfigError(f"classes must be 2 or more, got {classes}")

    def poison(client: ClientId, examples: Examples) -> Examples:
        images, labels = examples
        if np.any((labels < 0) | (labels >= classes)):
            raise ConfigError(
                f"client {client}: labels must be from 0 to {classes - 1}, "
                f"got {labels.min()} to {labels.max()}"
            )
        return images, classes - 1 - labels

    return poison_examples(fleet, attackers, poison)


def lie(fleet: Fleet, attackers: Attackers, *, z: float | None = None) -> CraftedFleet:
    """Return a fleet whose attackers send μ − z·σ; by default ``z`` follows from the numbers of clients."""
    if z is not None and not np.isfinite(z):
        raise ConfigError(f"z must be finite, or None to compute it, got {z}")

    def craft(scene: RoundView) -> NDArray[np.float64]:
        honest, attacking = len(scene.seen.clients), len(scene.own.clients)
        factor = little(honest, attacking) if z is None else z
        return mean(scene.seen) - factor * deviation(scene.seen)

    return CraftedFleet(fleet, attackers, craft)


def little(honest: int, attacking: int) -> float:
    """The z of n − m honest and m attacking participants."""
    supporters = (honest + attacking) // 2 + 1 - attacking
    share = (honest - supporters) / honest
    return NormalDist().inv_cdf(min(max(share, 0.5 / honest), 1 - 0.5 / honest))


Mode = Literal["add", "replace"]


def noise_trim(
    fleet: Fleet, attackers: Attackers, *, mode: Mode = "add", fraction: float = 0.1, scale: float = 1.0
) -> CraftedFleet:
    """Return a fleet whose attackers disturb some coordinates; ``scale`` 0 adds nothing, or replaces by 0."""
    if mode not in get_args(Mode):
        raise ConfigError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
    if not 0 < fraction <= 1:
        raise ConfigError(f"fraction must be more than 0 and at most 1, got {fraction}")
    if not (np.isfinite(scale) and scale >= 0):
        raise ConfigError(f"scale must be 0 or more, got {scale}")

    def disturbed(rng: np.random.Generator, update: Vector) -> NDArray[np.float64]:
        sent = update.astype(np.float64)
        places = rng.permutation(len(sent))[: round(fraction * len(sent))]
        noise = rng.normal(0.0, scale * sent.std(), len(places))
        sent[places] = sent[places] + noise if mode == "add" else noise
        return sent

    def craft(scene: RoundView) -> NDArray[np.float64]:
        rngs = (rng_for(attackers.seed, "noise-trim", scene.round, client) for client in scene.own.clients)
        return np.stack([disturbed(rng, row) for rng, row in zip(rngs, scene.own.vectors, strict=True)])

    return CraftedFleet(fleet, attackers, craft)


def sign_flip(fleet: Fleet, attackers: Attackers) -> CraftedFleet:
    """Return a fleet whose attackers send their updates backwards."""
    return CraftedFleet(fleet, attackers, lambda scene: -scene.own.vectors)
