"""The small demonstration: a training with hidden attackers, recorded, and what the history says of it.

Softmax regression on Gaussian classes, in plain numpy: no network, no other package, a few seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.text import Text

from fedcrab.history import Everything, History, Selective
from fedcrab.history.selection import Selection
from fedcrab.recover.cost import planned_costs
from fedcrab.report import tables
from fedcrab.report.tables import to_table
from fedcrab.rollback.decision import PRESETS, Plan, plan
from fedcrab.seeds import rng_for
from fedcrab.types import Round, Updates, Vector

SEED, CLIENTS, ROUNDS, CLASSES, FEATURES, EXAMPLES = 7, 12, 30, 5, 2000, 80
ATTACKERS, FROM_ROUND = ("4", "7", "9"), 8
STEP, LOCAL_STEPS, BOOST = 0.5, 5, 2.0
Examples = tuple[NDArray[np.float64], NDArray[np.intp]]


@dataclass(frozen=True)
class SmallDemoResult:
    """What the demonstration found."""

    history: History
    plans: Mapping[str, Plan]
    everything_bytes: int

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        plans = {name: p.to_table() for name, p in self.plans.items()}
        return {"history": to_table(self.history), "plans": plans, "bytes": self._bytes()}

    def _bytes(self) -> dict[str, int]:
        return {"selective": self.history.bytes()["total"], "everything": self.everything_bytes}

    def tables(self) -> list[RenderableType]:
        """For people."""
        ours, theirs = self._bytes().values()
        names = ", ".join(ATTACKERS)
        return [
            tables.history_tables(self.history),
            Text(f"\nClients {names} were malicious from round {FROM_ROUND} on. Told so, fedcrab decides:\n"),
            tables.plans_table(self.plans),
            tables.costs_table(planned_costs(self.plans["hardened"], self.plans["paper"])),
            tables.shares_table(self.plans),
            *tables.warnings_lines(self.plans),
            Text(
                f"History on disk: {tables.size(ours)}; with every update vector kept it would be "
                f"{tables.size(theirs)}, {theirs / ours:.0f} times as much."
            ),
            Text(
                "With the extra 'simulate' installed, the demo also recovers: pip install 'fedcrab[simulate]'"
            ),
        ]


@contextmanager
def record_and_plan(out: Path | None = None) -> Iterator[SmallDemoResult]:
    """Record the training twice, by Crab's selection and with everything kept, and plan from the first."""
    with tempfile.TemporaryDirectory() as place:
        everything = _train(Path(place) / "everything", Everything())
        history = _train(out or Path(place) / "selective", Selective())
        plans = {name: plan(history, ATTACKERS, since=FROM_ROUND, **how) for name, how in PRESETS.items()}
        yield SmallDemoResult(history, plans, everything.bytes()["total"])


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


def _examples(*address: str | int) -> Examples:
    """Examples of Gaussian classes whose centres everybody shares."""
    centres = rng_for(SEED, "centres").normal(size=(CLASSES, FEATURES))
    rng = rng_for(SEED, *address)
    labels = rng.integers(0, CLASSES, EXAMPLES)
    return 0.15 * centres[labels] + rng.normal(size=(EXAMPLES, FEATURES)), labels


def _update(model: Vector, client: str, data: Examples, round: int) -> Vector:
    """What a client sends; an attacker trains on shifted labels, and shouts."""
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
