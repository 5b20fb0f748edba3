"""What clients send is hostile: who is let into a round, and why the others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcrab.errors import RecordError
from fedcrab.types import ClientId, Rejection, Updates, Vector
from fedcrab.vectors import is_finite

MOST_EXAMPLES = 10**9  # a client that claims more examples than this is not believed
LONGEST_ID = 200
LONGEST_TEXT = 1000  # characters of anything that a ledger says in words


@dataclass(frozen=True, slots=True)
class Answer:
    """What one client sent, nothing of it trusted yet."""

    client: ClientId
    round: int
    update: Any
    examples: Any


def admit(
    answers: Iterable[Answer], *, round: int, size: int, asked: Collection[ClientId] | None = None
) -> tuple[Updates, tuple[Rejection, ...]]:
    """The usable answers as updates, and each other client with the reason it was left out.

    ``size`` is the length of the model, ``asked`` the clients that were asked (anyone, if None).
    """
    answers = list(answers)
    times = Counter(a.client for a in answers)
    good: dict[ClientId, tuple[Vector, float]] = {}
    rejected: dict[ClientId, str] = {}
    for answer in answers:
        reason = _reason(answer, times[answer.client], round, size, asked)
        if reason:
            rejected[answer.client] = reason
        else:
            good[answer.client] = (answer.update, float(answer.examples))
    updates = Updates.of(good) if good else nobody(size)
    return updates, tuple(Rejection(printable(c), rejected[c]) for c in sorted(rejected, key=str))


def _reason(
    answer: Answer, times: int, round: int, size: int, asked: Collection[ClientId] | None
) -> str | None:
    """Why this answer cannot be used, or None."""
    if asked is not None and answer.client not in asked:
        return "was not asked in this round"
    if times > 1:
        return f"answered {times} times in one round"
    if answer.round != round:
        return f"answered round {str(answer.round)[:20]} in place of round {round}"
    return _bad_id(answer.client) or flaw(answer.update, answer.examples, size)


def flaw(update: object, examples: object, size: int) -> str | None:
    """Why this update with this number of examples cannot be used, or None."""
    return _bad_update(update, size) or _bad_examples(examples)


def _bad_id(client: object) -> str | None:
    if not isinstance(client, str) or not client or len(client) > LONGEST_ID:
        return f"the id is not a text of 1 to {LONGEST_ID} characters"
    if not client.isprintable() or "," in client or client != client.strip():
        return "the id has characters that an id cannot have"
    return None


def _bad_update(update: object, size: int) -> str | None:
    if not isinstance(update, np.ndarray) or update.dtype != np.float32:
        kind = update.dtype if isinstance(update, np.ndarray) else type(update).__name__
        return f"the update is not a float32 array but {str(kind)[:40]}"
    if update.shape != (size,):
        return f"the update has shape {str(update.shape)[:40]} in place of ({size},)"
    if not is_finite(update):
        return "the update has values that are not finite"
    return None


def _bad_examples(examples: object) -> str | None:
    if isinstance(examples, bool) or not isinstance(examples, int | float | np.integer | np.floating):
        return "the number of examples is not a number"
    if not 0 < examples <= MOST_EXAMPLES:
        return f"the number of examples is {float(examples):g}"
    return None


def screen(updates: Updates, *, size: int) -> tuple[Updates, tuple[Rejection, ...]]:
    """The rows that can be used, and who was left out: the last gate before a round is recorded."""
    if len(updates.clients) and updates.vectors.shape[1] != size:
        raise RecordError(f"updates have {updates.vectors.shape[1]} numbers, the model has {size}")
    times = Counter(updates.clients)
    rejected = {}
    for client, row, weight in zip(updates.clients, updates.vectors, updates.weights, strict=True):
        reason = (
            (f"answered {times[client]} times in one round" if times[client] > 1 else None)
            or _bad_id(client)
            or flaw(row, weight, size)
        )
        if reason:
            rejected[client] = reason
    kept = updates.without(rejected) if rejected else updates
    named = tuple(Rejection(printable(c), rejected[c]) for c in sorted(rejected, key=str))
    return (kept if kept.clients else nobody(size)), named


def nobody(size: int) -> Updates:
    """The updates of a round in which no usable answer came."""
    return Updates((), np.zeros((0, size), np.float32), np.zeros(0))


def as_printable(rejection: Rejection) -> Rejection:
    """A rejection that somebody else found, made fit to be written down."""
    fit = (t if t.isprintable() else ascii(t) for t in (str(rejection.client), str(rejection.reason)))
    return Rejection(*(text[:LONGEST_TEXT] for text in fit))


def printable(client: object) -> ClientId:
    """An id that may be hostile itself, made fit to be written down."""
    return ascii(client)[:LONGEST_ID] if _bad_id(client) else str(client)
