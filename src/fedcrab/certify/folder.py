"""What a recovery left in its folder, read as evidence: its model, its steps, what was asked.

DIR/model.safetensors   DIR/summary.json   DIR/request.json   DIR/steps/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcrab.certify.evidence import Evidence
from fedcrab.errors import DamagedError, HistoryError
from fedcrab.history import History
from fedcrab.history.disk import hash_regular
from fedcrab.history.snapshots import read_model
from fedcrab.recover.progress import REQUEST, parsed, saved_steps
from fedcrab.types import Vector

MODEL, SUMMARY, START = "model.safetensors", "summary.json", "start.safetensors"


@dataclass(frozen=True)
class Folder:
    """A recovery on disk."""

    path: Path
    summary: Mapping[str, Any]
    request: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> Folder:
        """What ``recover`` wrote there."""
        if not (path / SUMMARY).is_file():
            raise HistoryError(
                f"{path}: no recovery here (there is no {SUMMARY}); 'fedcrab recover' writes one"
            )
        return cls(path, parsed(path / SUMMARY), parsed(path / REQUEST))

    def history(self) -> Path:
        """Where the history was when it was recovered from."""
        place = self.summary.get("history")
        if not isinstance(place, str) or "\0" in place:
            raise DamagedError(f"{self.path / SUMMARY}: does not say which history")
        return Path(place)

    def model(self, history: History) -> Vector:
        """The recovered model."""
        return model_file(self.path / MODEL, history)

    def start(self, history: History) -> Vector | None:
        """The noised model that recovery began at, where there is one."""
        path = self.path / START
        return model_file(path, history) if path.exists() else None

    def noise(self) -> Mapping[str, float] | None:
        """Epsilon and delta, where recovery was asked to begin at a noised model."""
        noise = self.request.get("noise")
        if noise is not None and not isinstance(noise, Mapping):
            raise DamagedError(f"{self.path}: its request has a noise that cannot be")
        return noise

    def steps(self) -> tuple[Mapping[str, Any], ...]:
        """The steps, each of the shape that a step has."""
        return tuple(_checked(self.path, step) for step in saved_steps(self.path))

    def evidence(self, history: History, retrained: Folder | None) -> Evidence:
        """All that there is to go by."""
        return Evidence(
            self.model(history),
            self.steps(),
            self.start(history),
            retrained.model(history) if retrained else None,
            retrained.steps() if retrained else None,
        )


def model_file(path: Path, history: History) -> Vector:
    """A model of the history's layout; which one it is, its hash says."""
    return read_model(path, hash_regular(path), history.charter.layout)


def _checked(path: Path, step: Any) -> Mapping[str, Any]:
    """A step whose numbers can be counted with."""
    if not isinstance(step, dict) or not isinstance(step.get("round"), int):
        raise DamagedError(f"{path}: a step cannot be read")
    clients = step.get("clients")
    examples, lengths = _numbers(step.get("examples")), _numbers(step.get("lengths"))
    renewed = _numbers(step.get("renewed", []))
    named = isinstance(clients, list) and all(isinstance(c, str) for c in clients)
    even = len(examples) == len(lengths) == len(clients or ()) and len(renewed) in (0, len(examples))
    if not named or not even or 0 in (*examples, *renewed):
        raise DamagedError(f"{path}: the step of round {step['round']} has numbers that cannot be")
    return dict(step)


def _numbers(row: Any) -> list[float]:
    """A list of numbers of 0 or more."""
    good = isinstance(row, list) and all(isinstance(n, int | float) and 0 <= n < 1e100 for n in row)
    if not good:
        raise DamagedError("a step of the recovery has numbers that cannot be")
    return list(row)
