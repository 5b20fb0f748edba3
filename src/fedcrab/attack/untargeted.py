"""Untargeted attacks: they make the model worse in general, without a backdoor.

A Little Is Enough, inner-product manipulation, label flipping, noise-trim and sign flipping; each function
names its reference. u is an attacker's own update; μ and σ are the coordinate-wise mean and deviation of the
honest updates, or of the attackers' own in a round without honest clients.
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
    """Return a fleet whose attackers send −ε·μ, the honest mean reversed (inner-product manipulation).

    ε is ``scale``: a small one passes distance-based rules; more than (n − m)/m reverses the mean of n
    clients with m attackers. Raises ``ConfigError`` unless it is finite and more than 0.
    Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI
    2019.
    """
    if not (np.isfinite(scale) and scale > 0):
        raise ConfigError(f"scale must be more than 0, got {scale}")
    return CraftedFleet(fleet, attackers, lambda scene: -scale * mean(scene.seen))


def label_flip(fleet: DataFleet, attackers: Attackers, *, classes: int) -> PoisonedDataFleet:
    """Return a fleet whose attackers train on mirrored labels: y → classes − 1 − y, in all of their examples.

    Raises ``ConfigError`` for labels that are not below ``classes``, and for a fleet that does not expose its
    clients' examples.
    Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX Security 2020
    (baseline).
    """
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
    """Return a fleet whose attackers send μ − z·σ: no further from the mean than honest clients (LIE).

        z = Φ⁻¹((n − m − q) / (n − m)),   q = ⌊n/2 + 1⌋ − m

    n clients take part, and m of them attack. q is the number of honest clients that must be further from the
    mean for the attackers to be in the majority. σ divides by n − m, not n − m − 1. ``z`` replaces the
    computed value; it must be finite, or ``ConfigError`` is raised.
    Baruch, Baruch, Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS
    2019. Departs from it: z would be infinite if attackers are the majority (q ≤ 0), and minus infinity if
    all honest clients had to be further away. So the share is kept half a client away from 0 and 1.
    """
    if z is not None and not np.isfinite(z):
        raise ConfigError(f"z must be finite, or None to compute it, got {z}")

    def craft(scene: RoundView) -> NDArray[np.float64]:
        honest, attacking = len(scene.seen.clients), len(scene.own.clients)
        factor = lie_factor(honest, attacking) if z is None else z
        return mean(scene.seen) - factor * deviation(scene.seen)

    return CraftedFleet(fleet, attackers, craft)


def lie_factor(honest: int, attacking: int) -> float:
    """Return z for n − m honest and m attacking participants."""
    supporters = (honest + attacking) // 2 + 1 - attacking
    share = (honest - supporters) / honest
    return NormalDist().inv_cdf(min(max(share, 0.5 / honest), 1 - 0.5 / honest))


Mode = Literal["add", "replace"]


def noise_trim(
    fleet: Fleet, attackers: Attackers, *, mode: Mode = "add", fraction: float = 0.1, scale: float = 1.0
) -> CraftedFleet:
    """Return a fleet whose attackers disturb some coordinates: what Crab's paper evaluates as Trim attack.

        u[k] + ε_k (mode ``add``) or ε_k (mode ``replace``) at a ``fraction`` of coordinates k, else u[k]
        ε_k ~ N(0, (scale·σ_u)²)

    σ_u is the deviation of the update's coordinates. The coordinates are drawn again per attacker and round.
    ``scale`` 0 adds nothing, or replaces with 0. Raises ``ConfigError`` for impossible settings. This is not
    the Trim attack of Fang et al., which is :func:`fedcrab.attack.fang_trim`.
    """
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
    """Return a fleet whose attackers send −u, their update reversed.

    Li et al., "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning", AAAI 2019.
    """
    return CraftedFleet(fleet, attackers, lambda scene: -scene.own.vectors)
