"""A fixed small training to record, and what must hold of its history wherever the recording was stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np

from fedcrab import Everything, Field, History, HistoryError, Layout, Rejection, Round, Selective, Updates
from fedcrab.admission import screen_updates
from fedcrab.history.selection import Selection
from fedcrab.seeds import rng_for

LAYOUT = Layout((Field("weight", (2, 2)), Field("bias", (1,)), Field("seen", (1,), trained=False)))
LOSSES = (0.98, 0.96, 0.80, 0.79, float("nan"), 0.78, 0.60, 0.59)
CLIENTS = ("a", "b", "c", "d")
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOT_SEALED = "closed, but not sealed"  # what verify says between the last entry and the seal
CREATED, CLOSED = -1, 10**6  # acknowledged beside the rounds
SELECTIONS: dict[str, Selection] = {
    "selective": Selective(alpha=0.1, rounds=0.6, clients=0.7, max_window=3),
    "everything": Everything(),
}
Acknowledge = Callable[[int], None]


@cache
def rounds(count: int = len(LOSSES)) -> tuple[Round, ...]:
    """Windows closed by loss and by length, a client turned away, an exchanged model, a round of nobody."""
    model, made = initial_model(), []
    for t in range(count):
        rng = rng_for(7, "torture", t)
        vectors = rng.normal(size=(len(CLIENTS), LAYOUT.size)).astype(np.float32)
        if t % 8 == 2:
            vectors[1] = np.nan
        if t % 8 == 5:
            vectors[:] = np.inf
        if t % 8 == 6:
            model = model + np.float32(0.5)
        updates, rejected = screen_updates(Updates(CLIENTS, vectors, np.arange(1.0, 5.0)), size=LAYOUT.size)
        usable = updates.vectors
        step = usable.mean(axis=0) if len(usable) else np.zeros(LAYOUT.size, np.float32)
        early = (Rejection("e", "was not asked in this round"),) if t % 8 == 3 else ()
        loss, change = LOSSES[t % 8] * 0.9 ** (t // 8), float(rng.uniform())
        when = NOON + timedelta(minutes=t)  # given, so that every recording of them has the same head
        made.append(Round(t, model, updates, step, loss, change, (*early, *rejected), when, when))
        if len(usable):
            model = model + step
    return tuple(made)


def initial_model() -> np.ndarray:
    return np.linspace(-1, 1, LAYOUT.size, dtype=np.float32)


def create(path: Path, selection: str) -> History:
    return History.create(
        path, initial_model(), initial_loss=1.0, selection=SELECTIONS[selection], layout=LAYOUT, seed=5
    )


def record(
    path: Path, selection: str, acknowledge: Acknowledge = lambda _: None, *, count: int = len(LOSSES)
) -> None:
    """The whole recording, without a thought of failure."""
    history = create(path, selection)
    acknowledge(CREATED)
    for each in rounds(count):
        history.record(each)
        acknowledge(each.index)
    history.close()
    acknowledge(CLOSED)


def go_on(path: Path, selection: str) -> None:
    """Take a recording up wherever it was left and bring it to its end."""
    if not path.exists():
        return record(path, selection)
    try:
        history = History.resume(path)
    except HistoryError as error:
        if "this history is closed" in str(error):
            return None
        raise
    for each in rounds()[max(len(history.rounds) - 1, 0) :]:  # the last one once more: it changes nothing
        history.record(each)
    return history.close()


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that can be read from a history."""

    entries: tuple[str, ...]  # every fact of every round and window
    head: str
    closed: bool
    kept: tuple[int, ...]
    models: dict[int, str]  # round -> sha256 of the model that can be read for it
    updates: dict[int, str]
    last: str  # of the model after the last round


def outcome(path: Path) -> Outcome:
    return read(History.open(path))


def read(history: History) -> Outcome:
    contents = history.contents
    readable = [r.index for r in history.rounds if contents.state(r.index) != "dropped"]
    return Outcome(
        entries=tuple(str(e.facts()) for e in (contents.charter, *contents.rounds, *contents.windows)),
        head=contents.head,
        closed=history.closed,
        kept=history.kept,
        models={t: _sha(history.model(t)) for t in readable},
        updates={t: _sha(history.updates(t).vectors) for t in readable if history.rounds[t].updates},
        last=_sha(history.final_model()),
    )


def _sha(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def snapshot_names(path: Path) -> list[str]:
    return sorted(p.name for p in path.rglob("*") if not p.name.endswith(("-wal", "-shm")))


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The recording as it goes when nothing happens: after each acknowledgement, and at the end."""

    selection: str
    stages: dict[int, Outcome]
    names: list[str]

    @classmethod
    def of(cls, directory: Path, selection: str) -> Undisturbed:
        stages: dict[int, Outcome] = {}
        path = directory / "undisturbed" / selection

        def note(what: int) -> None:
            stages[what] = outcome(path)

        record(path, selection, note)
        return cls(selection, stages, snapshot_names(path))

    def problems(self, path: Path, acknowledged: Sequence[int]) -> list[str]:
        """What is wrong with a history whose recording stopped after these acknowledgements."""
        problems = self._left(path, acknowledged)
        try:
            go_on(path, self.selection)
        except Exception as error:
            return [*problems, f"going on: {error!r}"]
        return problems + self.final_problems(path)

    def _left(self, path: Path, acknowledged: Sequence[int]) -> list[str]:
        """Every acknowledged round is there, every other whole or absent, and nothing is damaged."""
        if not path.exists():
            return ["it is gone"] if acknowledged else []
        try:
            problems = [f"verify: {p}" for p in History.verify(path) if NOT_SEALED not in p]
            found = outcome(path)
        except Exception as error:
            return [f"reading: {error!r}"]
        sent = max(acknowledged, default=CREATED)
        stage = next((s for s in sorted(self.stages) if self.stages[s].head == found.head), None)
        if stage is None or stage < sent:
            return [*problems, f"after {sent} it has {len(found.models)} models, head {found.head[:8]}"]
        if found != self.stages[stage]:
            return [*problems, f"stage {stage} differs from the undisturbed: {found}"]
        return problems

    def final_problems(self, path: Path) -> list[str]:
        """What is wrong with a history that was brought to its end."""
        try:
            problems = [f"verify at the end: {p}" for p in History.verify(path)]
            found = outcome(path)
        except Exception as error:
            return [f"reading the end: {error!r}"]
        if found != self.stages[CLOSED]:
            problems.append(f"the end differs: {found}")
        if snapshot_names(path) != self.names:
            problems.append(f"other files: {snapshot_names(path)}")
        return problems
