"""How long to wait for clients, on any engine."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite

from fedcrab.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for clients, and for how many of them."""

    deadline: float = 600.0  # seconds that an attempt may take
    quorum: float = 0.5  # share of those asked that must give a usable answer; at least one client
    attempts: int = 3  # how often a round is tried before giving up
    pause: float = 5.0  # seconds before the second attempt, twice as long before the third, and so on
    poll: float = 1.0  # longest time in seconds between two polls; at first a fiftieth of the wait

    def __post_init__(self) -> None:
        times = self.deadline, self.poll, self.pause
        if not all(isfinite(t) and t >= 0 for t in times) or not self.deadline or not self.poll:
            raise ConfigError(f"deadline, poll and pause must be numbers of seconds, got {times}")
        if not (isfinite(self.quorum) and 0 < self.quorum <= 1):
            raise ConfigError(f"quorum must be above 0 and at most 1, got {self.quorum}")
        if self.attempts < 1:
            raise ConfigError(f"attempts must be 1 or more, got {self.attempts}")

    def enough(self, asked: int) -> int:
        """Return how many of this many answers must be usable."""
        return max(1, ceil(self.quorum * asked - 1e-9))

    @property
    def longest(self) -> float:
        """Seconds after which no answer is read any more."""
        pauses = self.pause * float(2 ** (self.attempts - 1) - 1)
        return self.attempts * self.deadline + pauses + 60.0
