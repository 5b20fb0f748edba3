"""What must be said beside a rollback decision: when each sentence is called for, and the sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedcrab.geometry import sketch_error
from fedcrab.history import History
from fedcrab.types import ClientId, natural

Replay = Sequence[tuple[int, Sequence[ClientId]]]

# Those that depend on who is named, with places to fill in: the incident page fills the same sentences.
SENTENCES = {
    "last_record": (
        "The rollback goes to the last record (round {round}): whatever poison is in that "
        "model stays, and one round of replay has to wash it out."
    ),
    "never_selected": (
        "No malicious client was ever selected in a kept round: under evidence 'stored' they have no "
        "influence at all, however much they moved the model{advice}."
    ),
    "advice": "; decide by evidence 'all'",
    "never_let_in": "Never let into a round, so without influence: {clients}.",
    "nobody_left": "No honest client was selected in round {rounds}; replay skips it.",
}


def caveats(
    history: History,
    bad: frozenset[ClientId],
    evidence: str,
    index: int,
    candidates: Sequence[int],
    replay: Replay,
) -> list[str]:
    """Everything to be said of a decision."""
    own, general = _of_these_clients(history, bad, evidence), caveats_of_history(history)
    alone = [str(t) for t, clients in replay if not clients]
    if index == len(candidates) - 1 and index > 0:
        own.insert(0, SENTENCES["last_record"].format(round=candidates[-1]))
    if alone:
        general.insert(0, SENTENCES["nobody_left"].format(rounds=", ".join(alone)))
    return [*own, *general]


def _of_these_clients(history: History, bad: frozenset[ClientId], evidence: str) -> list[str]:
    said = []
    if not any(bad & _selected(history, t) for t in history.kept):
        advice = SENTENCES["advice"] if evidence == "stored" else ""
        said.append(SENTENCES["never_selected"].format(advice=advice))
    if never := bad - set(history.clients):
        said.append(SENTENCES["never_let_in"].format(clients=names(never)))
    return said


def caveats_of_history(history: History) -> list[str]:
    """What holds for every decision over this history."""
    charter, said = history.charter, []
    if charter.aggregation != "fedavg":
        said.append(
            f"The aggregates were made by {charter.aggregation}; the influence shown is that on the "
            "weighted mean, not on what this rule made of it."
        )
    if any(entry.coordinates.sketched for entry in history.rounds):
        error = sketch_error(charter.sketch_size)
        said.append(
            f"Rounds with more than {charter.gram_limit} clients are sketched: each norm has a standard "
            f"error of {error:.1%}."
        )
    if not history.closed:
        said.append("The history is not closed: rounds of the open window cannot be rolled back to yet.")
    return said


def names(clients: Collection[ClientId]) -> str:
    """Ids as people count them."""
    return ", ".join(sorted(clients, key=natural))


def _selected(history: History, round: int) -> set[ClientId]:
    entry = history.rounds[round]
    return {c for c, s in zip(entry.clients, entry.selected, strict=True) if s}
