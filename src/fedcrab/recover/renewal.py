"""Update renewal: honest clients train again, from the recovered model."""

from __future__ import annotations

from collections.abc import Sequence

from fedcrab.admission import nobody, printable, screen
from fedcrab.errors import ConfigError
from fedcrab.recover.step import Harvest
from fedcrab.types import ClientId, Fleet, Rejection, Updates, Vector


def renew(
    fleet: Fleet, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None
) -> Harvest:
    """Let these clients train from ``model``; whoever cannot be used is dropped, and why.

    ``round`` is that of the history, so that clients who draw by round draw what they drew then.
    """
    if not clients:
        return Harvest(nobody(len(model)))
    answers = fleet.train(model, clients, round=round, epochs=epochs)
    updates, rejected = screen(answers.only(clients), size=len(model))
    dropped = (*rejected, *_strangers(answers, clients), *_missing(answers, clients))
    return Harvest(updates, tuple(clients), tuple(sorted(dropped, key=lambda r: r.client)))


def _strangers(answers: Updates, clients: Sequence[ClientId]) -> list[Rejection]:
    strangers = {c for c in answers.clients if c not in clients}
    return [Rejection(printable(c), "was not asked in this round") for c in strangers]


def _missing(answers: Updates, clients: Sequence[ClientId]) -> list[Rejection]:
    return [Rejection(c, "did not answer") for c in clients if c not in answers.clients]


def check_epochs(epochs: int | None) -> None:
    """The local epochs of the training are a count, or left to the fleet."""
    if epochs is not None and (not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1):
        raise ConfigError(f"epochs must be a whole number of 1 or more, or None, got {epochs!r}")
