"""Who attacks, and when."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId


@dataclass(frozen=True, slots=True)
class Attackers:
    """The malicious clients. They act together or not at all; when they do not act they are honest."""

    clients: frozenset[ClientId]
    start: int = 0  # the first round in which they may act
    share: float = 1.0  # of the rounds from there on, drawn one by one: 0 never, 1 always
    seed: int = 0  # of every draw that the attack makes

    def __post_init__(self) -> None:
        if isinstance(self.clients, str):
            raise ConfigError(f"attackers are a set of client ids, got the one string {self.clients!r}")
        object.__setattr__(self, "clients", frozenset(self.clients))
        if self.start < 0:
            raise ConfigError(f"start must be round 0 or later, got {self.start}")
        if not 0 <= self.share <= 1:
            raise ConfigError(f"share must be between 0 and 1, got {self.share}")

    def active(self, round: int) -> frozenset[ClientId]:
        """The attackers that act in this round: all or none."""
        if round < self.start or rng_for(self.seed, "attack", round).random() >= self.share:
            return frozenset()
        return self.clients


def draw_attackers(pool: Collection[ClientId], fraction: float, seed: int) -> frozenset[ClientId]:
    """round(fraction × pool) clients, half to even; the order of the pool does not matter."""
    if not 0 <= fraction <= 1:
        raise ConfigError(f"fraction must be between 0 and 1, got {fraction}")
    ordered = sorted(set(pool))
    drawn = rng_for(seed, "attackers").permutation(len(ordered))[: round(fraction * len(ordered))]
    return frozenset(ordered[i] for i in drawn)
