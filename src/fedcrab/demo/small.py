"""The small demo: a training whose clients become malicious, a plan, and a replay.

Softmax regression on Gaussian classes in plain numpy: no network, no other packages, a few seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.text import Text

from fedcrab.history import Compact, Everything, History, Selective
from fedcrab.history.selection import Selection
from fedcrab.recover import Step
from fedcrab.recover.cost import planned_costs
from fedcrab.recover.methods import METHODS, REFERENCE, default_method
from fedcrab.report import tables
from fedcrab.report.tables import to_table
from fedcrab.rollback.decision import PRESETS, Plan, plan
from fedcrab.seeds import rng_for
from fedcrab.terminal_table import FittedTable
from fedcrab.types import ClientId, Round, Updates, Vector

SEED, CLIENTS, ROUNDS, CLASSES, FEATURES, EXAMPLES = 7, 12, 30, 5, 2000, 80
ATTACKERS, FROM_ROUND = ("4", "7", "9"), 8
STEP, LOCAL_STEPS, BOOST = 0.5, 5, 2.0
Examples = tuple[NDArray[np.float64], NDArray[np.intp]]


@dataclass(frozen=True)
class SmallDemoResult:
    """The result of the small demo."""

    history: History
    plans: Mapping[str, Plan]
    everything_bytes: int
    rows: Sequence[Mapping[str, Any]]  # accuracy and cost of the poisoned model, training again and replay

    def to_table(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        plans = {name: p.to_table() for name, p in self.plans.items()}
        table = {"history": to_table(self.history), "plans": plans, "bytes": self._bytes()}
        return {**table, "methods": [dict(row) for row in self.rows]}

    def _bytes(self) -> dict[str, int]:
        return {"selective": self.history.bytes()["total"], "everything": self.everything_bytes}

    def tables(self) -> list[RenderableType]:
        """Return tables for the terminal."""
        ours, theirs = self._bytes().values()
        names = ", ".join(ATTACKERS)
        return [
            tables.history_tables(self.history),
            Text(
                f"\nClients {names} were malicious from round {FROM_ROUND} on. Given this, fedcrab decides:\n"
            ),
            tables.plans_table(self.plans),
            tables.costs_table(planned_costs(self.plans["hardened"], self.plans["paper"])),
            tables.shares_table(self.plans),
            *tables.warnings_lines(self.plans),
            Text(
                f"History on disk: {tables.size(ours)}; with every update vector kept it would be "
                f"{tables.size(theirs)}, {theirs / ours:.0f} times as much."
            ),
            Text("\nRecovery from every update in 4 bits per number, beside full retraining:\n"),
            self._recovered(),
            Text(
                "With the extra 'simulate' installed, the demo plants a backdoor in a neural network and "
                "recovers by every method: pip install 'fedcrab[simulate]'"
            ),
        ]

    def _recovered(self) -> RenderableType:
        table = FittedTable("Recovery", "method", "accuracy", "rounds with contact", "client rounds")
        for row in self.rows:
            counts = (str(row[name]) for name in ("contact_rounds", "client_rounds"))
            table.add_row(row["method"], f"{row['ta']:.1%}", *counts)
        return table


@contextmanager
def record_and_plan(out: Path | None = None) -> Iterator[SmallDemoResult]:
    """Record the training twice, with Crab's selection and with everything, and plan from the first."""
    with tempfile.TemporaryDirectory() as place:
        everything = _train(Path(place) / "everything", Everything())
        history = _train(out or Path(place) / "selective", Selective())
        plans = {name: plan(history, ATTACKERS, since=FROM_ROUND, **how) for name, how in PRESETS.items()}
        rows = _recovered(_train(Path(place) / "compact", Compact()))
        yield SmallDemoResult(history, plans, everything.bytes()["total"], rows)


class _Clients:
    """The clients as a fleet for the recovery, which never asks the attackers."""

    def train(
        self,
        model: Vector,
        clients: Sequence[ClientId],
        *,
        round: int,
        epochs: int | None = None,  # noqa: ARG002 - the number of steps is always the same
    ) -> Updates:
        """Return the updates of these clients."""
        answers = {c: _update(model, c, _examples("client", int(c)), round) for c in clients}
        return Updates.of({c: (update, EXAMPLES) for c, update in answers.items()})


def _recovered(history: History) -> list[dict[str, Any]]:
    """Accuracy on other examples and cost of the poisoned model, of retraining, and of the default method."""
    decided, test = plan(history, ATTACKERS, since=FROM_ROUND), _examples("test")
    rows = [{"method": "poisoned", **_measured(history.final_model(), (), test)}]
    for name in (REFERENCE, default_method(history)[0]):
        steps = list(METHODS[name].function(decided, _Clients(), **METHODS[name].settings))
        rows.append({"method": name, **_measured(steps[-1].model, steps, test)})
    return rows


def _measured(model: Vector, steps: Sequence[Step], data: Examples) -> dict[str, Any]:
    inputs, labels = data
    right = _probabilities(model, inputs).argmax(axis=1) == labels
    counts = [len(step.asked) for step in steps]
    return {
        "ta": float(right.mean()),
        "contact_rounds": sum(bool(n) for n in counts),
        "client_rounds": sum(counts),
    }


def _train(path: Path, selection: Selection) -> History:
    """Federated averaging over all clients, recorded."""
    probe = _examples("probe")
    clients = {str(c): _examples("client", c) for c in range(CLIENTS)}
    model = np.zeros(CLASSES * FEATURES, np.float32)
    with History.create(
        path, model, initial_loss=_loss(model, probe), selection=selection, seed=SEED
    ) as history:
        for index in range(ROUNDS):
            answers = {c: (_update(model, c, data, index), EXAMPLES) for c, data in clients.items()}
            updates = Updates.of(answers)
            step = updates.vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
            after = model + step
            divergence = _divergence(model, after, probe)
            history.record(Round(index, model, updates, step, _loss(after, probe), divergence))
            model = after
    return history


@cache
def _examples(*address: str | int) -> Examples:
    """Examples of Gaussian classes whose centres everybody shares."""
    centres = rng_for(SEED, "centres").normal(size=(CLASSES, FEATURES))
    rng = rng_for(SEED, *address)
    labels = rng.integers(0, CLASSES, EXAMPLES)
    return 0.15 * centres[labels] + rng.normal(size=(EXAMPLES, FEATURES)), labels


def _update(model: Vector, client: str, data: Examples, round: int) -> Vector:
    """Return a client's update; an attacker trains on shifted labels and boosts its update."""
    inputs, labels = data
    hostile = client in ATTACKERS and round >= FROM_ROUND
    goal = np.eye(CLASSES)[(labels + 1) % CLASSES if hostile else labels]
    local = model.astype(np.float64)
    for _ in range(LOCAL_STEPS):
        slope = inputs.T @ (_probabilities(local, inputs) - goal) / len(inputs)
        local = local - STEP * slope.reshape(-1)
    return ((local - model) * (BOOST if hostile else 1.0)).astype(np.float32)


def _probabilities(model: NDArray[np.floating], inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    scores = inputs @ model.astype(np.float64).reshape(FEATURES, CLASSES)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))


def _loss(model: Vector, data: Examples) -> float:
    inputs, labels = data
    return float(-np.log(_probabilities(model, inputs)[np.arange(len(labels)), labels]).mean())


def _divergence(before: Vector, after: Vector, data: Examples) -> float:
    """KL(p_t ‖ p_{t+1}), averaged over the probe examples."""
    old, new = _probabilities(before, data[0]), _probabilities(after, data[0])
    return float((old * np.log(old / new)).sum(axis=1).mean())
