"""The federated loop: ask clients, leave out what cannot be used, aggregate, record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedcrab.admission import screen
from fedcrab.aggregate.buffers import beside_buffers
from fedcrab.aggregate.rule import Aggregate
from fedcrab.errors import ConfigError
from fedcrab.history import History
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId, Fleet, Rejection, Round, Vector


class Probe(Protocol):
    """What the server can tell of a model by itself."""

    def loss(self, model: Vector) -> float:
        """F(model)."""
        ...

    def divergence(self, before: Vector, after: Vector) -> float:
        """KL(p_before ‖ p_after)."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """A round that is done and recorded."""

    round: int
    model: Vector  # M_{t+1}
    loss: float
    participants: tuple[ClientId, ...]
    rejected: tuple[Rejection, ...]


def train(
    fleet: Fleet,
    clients: Sequence[ClientId],
    history: History,
    *,
    probe: Probe,
    aggregate: Aggregate,
    rounds: int,
    seed: int,
    share: float = 1.0,
    drop_out: float = 0.0,
    model: Vector | None = None,
) -> Iterator[Step]:
    """Train until the history has this many rounds, going on from those it has already.

    ``model`` is one to go on from in place of the last one, such as a recovered one.
    In each round a ``share`` of the clients is asked, and each of them fails to answer with probability
    ``drop_out``. Both draws belong to the round: a training resumed is the training uninterrupted.
    """
    _check(share, drop_out)
    rule = beside_buffers(aggregate, history.charter.layout)
    model = history.final_model() if model is None else model
    for index in range(len(history.rounds), rounds):
        asked = taking_part(clients, index, seed=seed, share=share, drop_out=drop_out)
        updates, rejected = screen(fleet.train(model, asked, round=index), size=len(model))
        step = rule(updates.vectors, updates.weights) if updates.clients else np.zeros_like(model)
        after = model + step
        loss = probe.loss(after)
        divergence = probe.divergence(model, after)
        history.record(Round(index, model, updates, step, loss, divergence, rejected))
        yield Step(index, after, loss, updates.clients, rejected)
        model = after


def taking_part(
    clients: Sequence[ClientId], round: int, *, seed: int, share: float, drop_out: float
) -> tuple[ClientId, ...]:
    """Who answers in this round."""
    everyone = sorted(clients)
    count = max(1, int(np.rint(share * len(everyone))))
    asked = rng_for(seed, "participants", round).permutation(len(everyone))[:count]
    answers = rng_for(seed, "drop-out", round).random(len(everyone)) >= drop_out
    return tuple(everyone[i] for i in sorted(asked.tolist()) if answers[i])


def _check(share: float, drop_out: float) -> None:
    if not 0 < share <= 1:
        raise ConfigError(f"the share of clients asked must be above 0 and at most 1, got {share}")
    if not 0 <= drop_out < 1:
        raise ConfigError(f"drop_out must be at least 0 and below 1, got {drop_out}")
