"""The federated training loop: ask clients, reject unusable answers, aggregate, record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from threading import Thread
from typing import TypeVar

import numpy as np

from fedcrab.admission import no_updates, screen_updates
from fedcrab.aggregate.mean import Aggregate, with_buffers
from fedcrab.errors import ConfigError
from fedcrab.history import History
from fedcrab.history.answers import ServerProbe
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId, Fleet, Rejection, Round, Updates, Vector, utc_now
from fedcrab.vectors import is_finite

Answer = TypeVar("Answer")
BEYOND = "the model after the round would not be finite"


@dataclass(frozen=True, slots=True)
class TrainedRound:
    """A recorded round and the model after it."""

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
    probe: ServerProbe,
    aggregate: Aggregate,
    rounds: int,
    seed: int,
    share: float = 1.0,
    drop_out: float = 0.0,
    model: Vector | None = None,
    clock: Callable[[], datetime] = utc_now,
    on_step: Callable[[TrainedRound], None] | None = None,
    ahead: bool = False,
) -> Iterator[TrainedRound]:
    """Train until the history has this many rounds, counting those it already has; yield each new round.

    ``model`` replaces the last model as the start, for example with a recovered one.
    In each round a ``share`` of the clients is asked, and each of them fails to answer with probability
    ``drop_out``. Both draws depend only on the round, so a resumed training equals an uninterrupted one.
    ``on_step`` is called with each recorded round; :mod:`fedcrab.loggers` has such functions.
    ``clock`` gives the times of rounds; nothing else depends on it.
    ``ahead`` asks the clients of the next round while this one is measured and recorded, in another thread.
    Use it for clients that train in other processes. The results are the same, and a round is still yielded
    only when it is durable. If you stop between rounds, the clients have trained one round for nothing.
    """
    _check(share, drop_out)
    rule = with_buffers(aggregate, history.charter.layout)
    model = history.final_model() if model is None else model

    def answers(index: int, model: Vector) -> tuple[datetime, Updates]:
        began = clock()
        asked = taking_part(clients, index, seed=seed, share=share, drop_out=drop_out)
        return began, fleet.train(model, asked, round=index)

    waiting: Callable[[], tuple[datetime, Updates]] = partial(answers, len(history.rounds), model)
    for index in range(len(history.rounds), rounds):
        began, answered = waiting()
        updates, rejected = screen_updates(answered, size=len(model))
        step = _step(rule, model, updates)
        if step is None:
            useless = tuple(Rejection(client, BEYOND) for client in updates.clients)
            updates, rejected, step = no_updates(len(model)), (*rejected, *useless), np.zeros_like(model)
        after = model + step
        ended = max(began, clock())  # the clock may have been set back
        waiting = partial(answers, index + 1, after)
        if ahead and index + 1 < rounds:
            waiting = _in_thread(waiting)
        loss = probe.loss(after)
        divergence = probe.divergence(model, after)
        history.record(Round(index, model, updates, step, loss, divergence, rejected, began, ended))
        done = TrainedRound(index, after, loss, updates.clients, rejected)
        if on_step is not None:
            on_step(done)
        yield done
        model = after


def _in_thread(work: Callable[[], Answer]) -> Callable[[], Answer]:
    """Start this work in a daemon thread; return a function that waits for its result."""
    found: Future[Answer] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as problem:  # raised again by the waiting function
            found.set_exception(problem)

    Thread(target=run, daemon=True).start()
    return found.result


def _step(rule: Aggregate, model: Vector, updates: Updates) -> Vector | None:
    """Return G_t: zero if nobody answered, None if M_t + G_t overflows float32."""
    if not updates.clients:
        return np.zeros_like(model)
    with np.errstate(over="ignore", invalid="ignore"):
        step = rule(updates.vectors, updates.weights)
        return step if is_finite(model + step) else None


def taking_part(
    clients: Sequence[ClientId], round: int, *, seed: int, share: float, drop_out: float
) -> tuple[ClientId, ...]:
    """Return the clients that answer in this round."""
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
