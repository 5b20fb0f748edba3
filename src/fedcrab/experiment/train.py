"""What the command ``train`` does: run a configuration and report progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.text import Text

from fedcrab.experiment.config import Config
from fedcrab.experiment.setup import Setup, open_for_training, prepare, run
from fedcrab.history import History
from fedcrab.progress import SILENT, Progress
from fedcrab.terminal_table import Column, FittedTable
from fedcrab.types import natural

WIDEST = 40  # clients shown of a partition


@dataclass(frozen=True)
class TrainResult:
    """A finished training."""

    history: History
    accuracy: float
    attackers: Sequence[str]
    examples: NDArray[np.int64]

    def to_table(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "history": str(self.history.path),
            "rounds": len(self.history.rounds),
            "kept": list(self.history.kept),
            "loss": loss if isfinite(loss := self.history.rounds[-1].loss) else None,
            "accuracy": self.accuracy,
            "attackers": list(self.attackers),
            "bytes": self.history.bytes(),
        }

    def tables(self) -> list[RenderableType]:
        """Return tables for the terminal."""
        last = self.history.rounds[-1]
        return [
            partition_table(self.examples),
            Text(
                f"{self.history.path}: {len(self.history.rounds)} rounds, {len(self.history.kept)} kept, "
                f"loss {last.loss:.4g}, test accuracy {self.accuracy:.1%}"
            ),
            Text(f"Attackers (a real server would not know): {', '.join(self.attackers) or 'none'}"),
        ]


def train_command(
    config: Config,
    directory: Path,
    *,
    resume: bool,
    workers: int | None,
    head_every: int = 0,
    progress: Progress = SILENT,
) -> TrainResult:
    """Train as configured; an interruption leaves a complete history.

    Every ``head_every`` rounds (0: never) the history's head is printed to standard error, so that it can be
    noted down.
    """
    setup = prepare(config, workers=workers)
    try:
        with open_for_training(setup, directory, resume=resume) as history:
            _follow(setup, history, head_every, progress)
        attackers = sorted(setup.attackers.clients, key=natural)
        return TrainResult(history, setup.accuracy(history.final_model()), attackers, setup.examples)
    finally:
        setup.close()


def _follow(setup: Setup, history: History, head_every: int, progress: Progress) -> None:
    count = len(setup.honest.clients)
    progress.stage(f"Training with {count} clients", total=setup.config.rounds, done=len(history.rounds))
    for step in run(setup, history):
        progress.step(f"loss {step.loss:.3f}, accuracy {setup.probe.accuracy(step.model):.1%}")
        if head_every and (step.round + 1) % head_every == 0:
            progress.line(f"head after round {step.round}: {history.contents.head}")


def partition_table(examples: NDArray[np.int64]) -> FittedTable:
    """Return the number of examples of each class that each client has."""
    classes = (Column(str(label), 1) for label in range(examples.shape[1]))
    table = FittedTable("Examples of each class", "client", *classes, "all")
    for client, row in enumerate(examples[:WIDEST].tolist()):
        table.add_row(str(client), *(str(n) for n in row), str(sum(row)))
    if len(examples) > WIDEST:
        table.caption = f"the first {WIDEST} of {len(examples)} clients"
    return table
