"""What whoever decides about a rollback should know beside the decision."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from fedcrab.geometry import sketch_error
from fedcrab.history import History
from fedcrab.types import ClientId, natural

Replay = Sequence[tuple[int, Sequence[ClientId]]]


def caveats(
    history: History, bad: frozenset[ClientId], evidence: str, rollback_round: int, replay: Replay
) -> Iterator[str]:
    """The warnings of a plan, a sentence or two each."""
    yield from _of_the_decision(history, bad, evidence, rollback_round)
    yield from _of_the_history(history)
    yield from _of_earlier_recoveries(history, bad)
    if alone := [str(t) for t, clients in replay if not clients]:
        yield f"No honest client was selected in round {', '.join(alone)}; replay skips it."
    if not history.closed:
        yield "The history is not closed: rounds of the open window cannot be rolled back to yet."


def _of_the_decision(
    history: History, bad: frozenset[ClientId], evidence: str, rollback_round: int
) -> Iterator[str]:
    if history.kept and 0 < rollback_round == history.kept[-1]:
        yield (
            f"The rollback goes to the last record (round {rollback_round}): whatever poison is in that "
            "model stays, and one round of replay has to wash it out."
        )
    if not bad & {client for t in history.kept for client in _selected(history, t)}:
        yield (
            "No malicious client was ever selected in a kept round: under evidence 'stored' they have no "
            "influence at all, however much they moved the model"
            + ("; decide by evidence 'all'." if evidence == "stored" else ".")
        )
    if never := bad - set(history.clients):
        yield f"Never let into a round, so without influence: {listed(never)}."


def _of_the_history(history: History) -> Iterator[str]:
    charter = history.charter
    if charter.aggregation != "fedavg":
        yield (
            f"The aggregates were made by {charter.aggregation}; the influence shown is that on the "
            "weighted mean, not on what this rule made of it."
        )
    if any(entry.coordinates.sketched for entry in history.rounds):
        error = sketch_error(charter.sketch_size)
        yield (
            f"Rounds with more than {charter.gram_limit} clients are sketched: each norm has a standard "
            f"error of {error:.1%}."
        )


def _of_earlier_recoveries(history: History, bad: frozenset[ClientId]) -> Iterator[str]:
    """Where training went on from another model than the round before left: a recovery, most likely."""
    rounds = history.rounds
    broken = [entry.index for before, entry in pairwise(rounds) if entry.start != before.after]
    if not broken:
        return
    later = {client for entry in rounds[broken[-1] :] for client in entry.clients}
    gone = {client for entry in rounds[: broken[-1]] for client in entry.clients} - later - bad
    places = ", ".join(map(str, broken))
    yield (
        f"Round {places} starts from another model than the round before left: a recovery. What was done "
        "before it is counted as if it were still there; the plan may go back further than it must."
        + (f" Not seen since: {listed(gone)}; name them too if they were found then." if gone else "")
    )


def _selected(history: History, round: int) -> list[ClientId]:
    entry = history.rounds[round]
    return [c for c, s in zip(entry.clients, entry.selected, strict=True) if s]


def listed(clients: Collection[ClientId]) -> str:
    """These clients, for people."""
    return ", ".join(sorted(clients, key=natural))
