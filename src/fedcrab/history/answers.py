"""Make a round from the clients' local models, for your own training loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedcrab.admission import no_updates, printable, screen_updates
from fedcrab.aggregate.mean import Aggregate, fedavg, with_buffers
from fedcrab.errors import ConfigError, RecordError
from fedcrab.state_dicts import flatten
from fedcrab.types import ClientId, Rejection, Round, Updates, Vector
from fedcrab.vectors import norm

if TYPE_CHECKING:
    from fedcrab.history.history import History

ClientAnswers = Mapping[ClientId, tuple[Any, float]]  # each client's local model and number of examples


class ServerProbe(Protocol):
    """What the server can measure about a model on its own examples."""

    def loss(self, model: Vector) -> float:
        """Return the loss F(model)."""
        ...

    def divergence(self, before: Vector, after: Vector) -> float:
        """Return KL(p_before ‖ p_after)."""
        ...


def round_of_answers(
    history: History,
    answers: ClientAnswers,
    *,
    model: Any = None,
    probe: ServerProbe | None = None,
    aggregate: Aggregate | None = None,
) -> Round:
    """Return the round made from these answers to the last recorded model."""
    start, layout = history.final_model(), history.charter.layout
    if model is not None and aggregate is not None:
        raise RecordError("give either the model after the round or the rule that makes it, not both")
    updates, rejected = _usable(answers, start, history)
    if model is not None:
        if rejected:
            raise RecordError(
                f"client {rejected[0].client}: {rejected[0].reason}; the model includes this answer, so "
                "the round cannot be recorded without it"
            )
        step = flatten(model, layout) - start
    elif updates.clients:
        step = with_buffers(aggregate or fedavg(), layout)(updates.vectors, updates.weights)
    else:
        step = np.zeros_like(start)
    loss, divergence = _measured(start, start + step, norm(step, layout.trained()), probe)
    return Round(len(history.rounds), start, updates, step, loss, divergence, rejected)


def _usable(answers: ClientAnswers, start: Vector, history: History) -> tuple[Updates, tuple[Rejection, ...]]:
    """Return each answer minus the model that it was trained from, and the rejected clients."""
    found: dict[ClientId, tuple[Vector, float]] = {}
    rejected: list[Rejection] = []
    for client, (local, examples) in answers.items():
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                found[client] = flatten(local, history.charter.layout) - start, examples
        except ConfigError as error:
            rejected.append(Rejection(printable(str(client)), str(error)[:200]))
    updates = Updates.of(found) if found else no_updates(len(start))
    kept, more = screen_updates(updates, size=len(start), known=history.clients)
    return kept, (*rejected, *more)


def _measured(before: Vector, after: Vector, moved: float, probe: ServerProbe | None) -> tuple[float, float]:
    """Return loss and divergence on the probe; without one, an unknown loss and how far the model moved."""
    return (math.nan, moved) if probe is None else (probe.loss(after), probe.divergence(before, after))
