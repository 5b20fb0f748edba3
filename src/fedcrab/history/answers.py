"""A round of a loop of one's own: from the clients' local models to the round that is recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedcrab.admission import no_updates, printable, screen_updates
from fedcrab.aggregate.mean import Aggregate, fedavg, with_buffers
from fedcrab.errors import ConfigError, RecordError
from fedcrab.state_dicts import flatten
from fedcrab.types import ClientId, Rejection, Round, Updates, Vector, utc_now
from fedcrab.vectors import norm

if TYPE_CHECKING:
    from fedcrab.history.history import History

ClientAnswers = Mapping[ClientId, tuple[Any, float]]  # each client's local model, and its examples


class ServerProbe(Protocol):
    """What the server can tell of a model by itself."""

    def loss(self, model: Vector) -> float:
        """F(model)."""
        ...

    def divergence(self, before: Vector, after: Vector) -> float:
        """KL(p_before ‖ p_after)."""
        ...


def round_of_answers(
    history: History,
    answers: ClientAnswers,
    *,
    model: Any = None,
    probe: ServerProbe | None = None,
    aggregate: Aggregate | None = None,
) -> Round:
    """The round that these answers to the last recorded model make."""
    start, layout = history.final_model(), history.charter.layout
    if model is not None and aggregate is not None:
        raise RecordError("give the model after the round or the rule that makes it, not both")
    updates, rejected = _usable(answers, start, history)
    if model is not None:
        if rejected:
            raise RecordError(
                f"client {rejected[0].client}: {rejected[0].reason}; the model was made with this answer, so "
                "that the round cannot be recorded without it"
            )
        step = flatten(model, layout) - start
    elif updates.clients:
        step = with_buffers(aggregate or fedavg(), layout)(updates.vectors, updates.weights)
    else:
        step = np.zeros_like(start)
    loss, divergence = _measured(start, start + step, norm(step, layout.trained()), probe)
    began = history.rounds[-1].ended if history.rounds else None
    now = utc_now()
    began = None if began is None or began > now else began
    return Round(len(history.rounds), start, updates, step, loss, divergence, rejected, began, now)


def _usable(answers: ClientAnswers, start: Vector, history: History) -> tuple[Updates, tuple[Rejection, ...]]:
    """Each answer less the model that it was trained from; whoever sent something else is left out."""
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
    """Loss and divergence by the server's own examples; without any, unknown and how far the model moved."""
    return (math.nan, moved) if probe is None else (probe.loss(after), probe.divergence(before, after))
