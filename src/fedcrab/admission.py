"""Decides which client answers a round uses. Nothing that a client sends is trusted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from unicodedata import is_normalized

import numpy as np

from fedcrab.errors import RecordError, shown
from fedcrab.types import ClientId, Rejection, Updates, Vector
from fedcrab.vectors import is_finite

MOST_EXAMPLES = 10**9  # a client that claims more is rejected
NOT_FINITE = "the update has values that are not finite"
LONGEST_ID = 200
LONGEST_TEXT = 1000  # characters per text in the ledger
# Characters that Python calls printable but that show nothing (Unicode's Default_Ignorable_Code_Point and two
# blank symbols). With them, two different ids could look the same.
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U0001d159\U000e0100-\U000e01ef]"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one client sent, not yet checked."""

    client: ClientId
    round: int
    update: Any
    examples: Any


def admit(
    answers: Iterable[Answer], *, round: int, size: int, asked: Collection[ClientId] | None = None
) -> tuple[Updates, tuple[Rejection, ...]]:
    """Return the usable answers as updates, and the other clients with the reason each was left out.

    ``size`` is the length of the model, ``asked`` the clients that were asked (None: any client may answer).
    """
    answers = list(answers)
    times = Counter(a.client for a in answers if isinstance(a.client, str))
    good: dict[ClientId, tuple[Vector, float]] = {}
    rejected: dict[ClientId, str] = {}
    for answer in answers:
        reason = _reason(answer, times, round, size, asked)
        if reason:
            rejected[printable(answer.client)] = reason
        else:
            good[answer.client] = (answer.update, float(answer.examples))
    updates = Updates.of(good) if good else no_updates(size)
    return updates, tuple(Rejection(client, rejected[client]) for client in sorted(rejected))


def _reason(
    answer: Answer, times: Counter[ClientId], round: int, size: int, asked: Collection[ClientId] | None
) -> str | None:
    """Return why this answer cannot be used, or None."""
    if not isinstance(answer.client, str):
        return bad_id(answer.client)
    if asked is not None and answer.client not in asked:
        return "was not asked in this round"
    if times[answer.client] > 1:
        return f"answered {times[answer.client]} times in one round"
    if not _is_number(answer.round) or answer.round != round:
        return f"answered round {shown(answer.round, 20)} in place of round {round}"
    return bad_id(answer.client) or update_problem(answer.update, answer.examples, size)


def bad_id(client: object) -> str | None:
    """Return why this cannot be a client id, or None.

    Any printable text is allowed, including commas and inner spaces. No two allowed ids look the same
    because of their encoding: each accented letter has one form, and invisible characters are refused.
    """
    if not isinstance(client, str) or not client or len(client) > LONGEST_ID:
        return f"the id is not a text of 1 to {LONGEST_ID} characters"
    if not client.isprintable() or INVISIBLE.search(client):
        return "the id has characters that cannot be seen"
    if client != client.strip() or "  " in client:
        return "the id has spaces at an end, or two in a row, which nobody would see"
    if not is_normalized("NFC", client):
        return "the id is not in Unicode's normal form NFC, so another could look the same"
    return None


def update_problem(update: object, examples: object, size: int) -> str | None:
    """Return why this update with this number of examples cannot be used, or None."""
    return _bad_update(update, size) or examples_problem(examples)


def _bad_update(update: object, size: int) -> str | None:
    if not isinstance(update, np.ndarray) or update.dtype != np.float32:
        kind = update.dtype if isinstance(update, np.ndarray) else type(update).__name__
        return f"the update is not a float32 array but {str(kind)[:40]}"
    if update.shape != (size,):
        return f"the update has shape {str(update.shape)[:40]} in place of ({size},)"
    if not is_finite(update):
        return NOT_FINITE
    return None


def examples_problem(examples: object) -> str | None:
    """Return why this cannot be a number of examples, or None."""
    if not _is_number(examples):
        return "the number of examples is not a number"
    if not 0 < examples <= MOST_EXAMPLES:  # type: ignore[operator]
        huge = isinstance(examples, int) and examples.bit_length() > 64
        return f"the number of examples is {shown(examples) if huge else f'{examples:g}'}"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def screen_updates(
    updates: Updates, *, size: int, known: Collection[ClientId] = ()
) -> tuple[Updates, tuple[Rejection, ...]]:
    """Return the usable updates, and the clients that were left out. Runs before aggregation.

    Ids in ``known`` are not checked again: an older history may contain ids that are refused now.
    """
    rejected = unusable_rows(updates, size=size, known=known)
    kept = updates.without(rejected) if rejected else updates
    named = tuple(Rejection(printable(c), rejected[c]) for c in sorted(rejected))
    return (kept if kept.clients else no_updates(size)), named


def unusable_rows(updates: Updates, *, size: int, known: Collection[ClientId] = ()) -> dict[ClientId, str]:
    """Return the clients whose rows cannot be used, with the reason."""
    if len(updates.clients) and updates.vectors.shape[1] != size:
        raise RecordError(f"updates have {updates.vectors.shape[1]} numbers, but the model has {size}")
    times = Counter(updates.clients)
    rejected = {}
    for client, row, weight in zip(updates.clients, updates.vectors, updates.weights, strict=True):
        reason = (
            (f"answered {times[client]} times in one round" if times[client] > 1 else None)
            or (None if client in known else bad_id(client))
            or update_problem(row, weight, size)
        )
        if reason:
            rejected[client] = reason
    return rejected


def no_updates(size: int) -> Updates:
    """Return the updates of a round without usable answers."""
    return Updates((), np.zeros((0, size), np.float32), np.zeros(0))


def as_printable(rejection: Rejection) -> Rejection:
    """Return a caller's rejection with printable text, so that the ledger can store it."""
    texts = (rejection.client, rejection.reason)
    fit = (t if isinstance(t, str) and t.isprintable() else shown(t, LONGEST_TEXT) for t in texts)
    return Rejection(*(text[:LONGEST_TEXT] for text in fit))


def printable(client: object) -> ClientId:
    """Return an untrusted id as printable text, so that the ledger can store it."""
    return shown(client, LONGEST_ID) if bad_id(client) else str(client)
