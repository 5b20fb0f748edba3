"""What a client does in a round: its settings, its batches, and what an engine that trains it must do.

Three engines do the same arithmetic: `plain` for any module, `stacked` for linear layers, `convolution`
for small CNNs. Each client's result depends on (seed, round, client, start, its examples) alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """SGD on a client: g + weight_decay·w, gathered with momentum, times the learning rate."""

    learning_rate: float = 0.005
    batch: int = 64  # the last batch of an epoch may be smaller; none is dropped
    epochs: int = 5
    momentum: float = 0.0  # 0 is plain SGD; starts from rest in every round
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.learning_rate < float("inf"):
            raise ConfigError(f"learning_rate must be 0 or more and finite, got {self.learning_rate}")
        if self.batch < 1 or self.epochs < 0:
            raise ConfigError(
                f"batch must be 1 or more and epochs 0 or more, got {self.batch}, {self.epochs}"
            )
        if not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < float("inf"):
            raise ConfigError(
                "momentum must be 0 or more and under 1, weight_decay 0 or more, "
                f"got {self.momentum}, {self.weight_decay}"
            )


@dataclass(frozen=True, slots=True)
class Task:
    """One client's work: its examples, and the row that takes its update."""

    client: ClientId
    x: Tensor
    y: Tensor
    update: Tensor
    held: Hashable = None  # names the examples, if they never change: what is made of them may then be kept


class Engine(Protocol):
    """A way to train clients. ``together``: how many it likes to be given at once."""

    @property
    def together(self) -> int:
        """How many clients gain from being trained in one call; 1 if none do."""
        ...

    def train(self, start: Tensor, tasks: Sequence[Task], *, round: int, epochs: int) -> None:
        """Train every task from ``start`` and write local minus start into its row."""
        ...


def orders(seed: int, round: int, client: ClientId, *, count: int, epochs: int) -> Iterator[Tensor]:
    """The order of a client's examples in each epoch of a round; batches are its consecutive pieces."""
    rng = rng_for(seed, "batches", round, client)
    for _ in range(epochs):
        yield torch.from_numpy(rng.permutation(count))
