"""What there is besides the history: models and steps of recovery and retraining."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedcrab.types import Vector


@dataclass(frozen=True)
class Evidence:
    """What there is besides the history."""

    model: Vector | None = None  # the recovered one
    steps: tuple[Mapping[str, Any], ...] | None = None
    start: Vector | None = None  # where recovery began, if not at the rollback model
    retrained: Vector | None = None
    retrained_steps: tuple[Mapping[str, Any], ...] | None = None
