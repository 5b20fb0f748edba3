"""Warnings about a rollback decision, and when each applies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedcrab.history import History
from fedcrab.history.gram import sketch_error
from fedcrab.types import ClientId, natural

Replay = Sequence[tuple[int, Sequence[ClientId]]]
# Warnings that depend on who is named, with placeholders: the incident page uses the same sentences.
SENTENCES = {
    "poison_left": (
        "Poison stays in the model before round {round}: {share} of all movement up to there came from "
        "{clients}, and a backdoor can survive in less. Rolling back to round {clean} (beta 0, evidence "
        "'all', rule 'prefix') leaves none of it."
    ),
    "never_selected": (
        "No malicious client was ever selected in a kept round: under evidence 'stored' they have no "
        "influence at all, however much they moved the model; decide by evidence 'all'."
    ),
    "unfound": (
        "The plan allows for up to {count} undetected attackers beyond those named: S is the largest and Φ "
        "the smallest value over every choice of that many clients. Nobody knows who they are, so they take "
        "part in the recovery; a robust aggregation rule limits what they can do there."
    ),
    "never_let_in": "Rejected from every round, so without influence: {clients}.",
    "recovered_before": (
        "Round {rounds} starts from another model than the round before it ended with: the model was "
        "recovered there. Earlier rounds still count, so the plan may go back further than necessary.{gone}"
    ),
    "gone": " Not seen since: {clients}; name them too if they were found then.",
    "nobody_left": "No honest client was selected in round {rounds}; replay skips it.",
    "not_closed": "The history is not closed: rounds of the open window cannot be rolled back to yet.",
}


@dataclass(frozen=True, slots=True)
class Left:
    """What poison a decision leaves in the rollback model."""

    share: float  # of all movement up to that model
    clients: frozenset[ClientId]  # the clients that it comes from
    round: int  # of that model
    clean: int  # the last kept round before which these clients did nothing


def plan_warnings(
    history: History,
    bad: frozenset[ClientId],
    evidence: str,
    replay: Replay,
    *,
    since: Mapping[ClientId, int],
    left: Left | None,
) -> Iterator[str]:
    """Return the warnings of a plan, one or two sentences each."""
    if left:
        yield SENTENCES["poison_left"].format(
            round=left.round, share=percent(left.share), clients=join_ids(left.clients), clean=left.clean
        )
    yield from _of_the_named(history, bad, evidence, since)
    yield from caveats_of_the_history(history)
    yield from _of_earlier_recoveries(history, bad)
    if alone := [str(t) for t, clients in replay if not clients]:
        yield SENTENCES["nobody_left"].format(rounds=", ".join(alone))
    if not history.closed:
        yield SENTENCES["not_closed"]


def _of_the_named(
    history: History, bad: frozenset[ClientId], evidence: str, since: Mapping[ClientId, int]
) -> Iterator[str]:
    selected = (t >= since.get(client, 0) for t in history.kept for client in bad & _selected(history, t))
    if evidence == "stored" and not any(selected):
        yield SENTENCES["never_selected"]
    if never := bad - set(history.clients):
        yield SENTENCES["never_let_in"].format(clients=join_ids(never))


def percent(share: float) -> str:
    """Return a positive share as a percentage."""
    return f"{100 * share:.1f}%" if share >= 0.001 else "less than 0.1%"


def caveats_of_the_history(history: History) -> Iterator[str]:
    """Yield the warnings that do not depend on the named clients."""
    charter = history.charter
    if charter.aggregation != "fedavg":
        yield (
            f"The server aggregated by {charter.aggregation}; the influence shown is that on the weighted "
            "mean, not on the result of this rule."
        )
    if any(entry.coordinates.sketched for entry in history.rounds):
        error = sketch_error(charter.sketch_size)
        yield (
            f"Rounds with more than {charter.gram_limit} clients are sketched: each norm has a standard "
            f"error of {error:.1%}."
        )


def _of_earlier_recoveries(history: History, bad: frozenset[ClientId]) -> Iterator[str]:
    broken, gone = earlier_recoveries(history)
    if broken:
        unnamed = SENTENCES["gone"].format(clients=join_ids(gone - bad)) if gone - bad else ""
        yield SENTENCES["recovered_before"].format(rounds=", ".join(map(str, broken)), gone=unnamed)


def earlier_recoveries(history: History) -> tuple[list[int], set[ClientId]]:
    """Return the rounds that start from a replaced model, and the clients that never took part again."""
    rounds = history.rounds
    broken = [entry.index for before, entry in pairwise(rounds) if entry.start != before.after]
    if not broken:
        return [], set()
    later = {client for entry in rounds[broken[-1] :] for client in entry.clients}
    return broken, {client for entry in rounds[: broken[-1]] for client in entry.clients} - later


def _selected(history: History, round: int) -> set[ClientId]:
    entry = history.rounds[round]
    return {c for c, s in zip(entry.clients, entry.selected, strict=True) if s}


def join_ids(clients: Collection[ClientId]) -> str:
    """Return these clients as text."""
    return ", ".join(sorted(clients, key=natural))
