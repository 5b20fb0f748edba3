"""What a recovery yields, round by round: the model, whose updates made it, and all that was out of line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcrab.aggregate.rule import Aggregate, shares
from fedcrab.types import ClientId, Layout, Rejection, Updates, Vector
from fedcrab.vectors import norm


@dataclass(frozen=True, slots=True)
class Capped:
    """A client whose calibration was held back."""

    client: ClientId
    ratio: float  # what ‖u‖ / ‖û‖ would have been


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """What FedRecover learnt from one exact answer; zero where a number is not trained."""

    round: int
    moved: Vector  # Δw: the recovered model less the history's
    changed: Vector  # Δg: the exact update less the stored one


Pairs = Mapping[ClientId, tuple[Pair, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One replayed round. It holds all that a recovery needs in order to go on after it."""

    round: int  # of the history
    model: Vector = field(repr=False)  # the recovered model after it
    clients: tuple[ClientId, ...] = ()  # whose updates were aggregated
    examples: tuple[float, ...] = ()  # of each
    lengths: tuple[float, ...] = ()  # ‖·‖ of each update as it was aggregated, calibrated or not
    renewed: tuple[float, ...] = ()  # ‖û‖ of each before it was calibrated; empty where none was
    asked: tuple[ClientId, ...] = ()  # who had to compute
    dropped: tuple[Rejection, ...] = ()  # who was asked, or answered, in vain
    capped: tuple[Capped, ...] = ()
    fixed: tuple[Rejection, ...] = ()  # who was asked because the estimate was of no use (FedRecover)
    skipped: str = ""  # why the model is as it was before, where it is
    pairs: Pairs = field(default_factory=dict, repr=False)  # what FedRecover goes on with

    @property
    def exact(self) -> tuple[ClientId, ...]:
        """Whose update was computed for this step."""
        return tuple(c for c in self.clients if c in self.asked)

    @property
    def estimated(self) -> tuple[ClientId, ...]:
        """Whose update came out of the history, as it was or corrected, without asking them."""
        return tuple(c for c in self.clients if c not in self.asked)

    @property
    def path(self) -> float:
        """Σ p_c·length: the weighted mean cannot have moved the model further than this."""
        return float(shares(np.array(self.examples)) @ np.array(self.lengths)) if self.clients else 0.0

    def to_table(self) -> dict[str, Any]:
        """As plain values, without the vectors."""
        return {
            "round": self.round,
            "clients": list(self.clients),
            "examples": list(self.examples),
            "lengths": list(self.lengths),
            "renewed": list(self.renewed),
            "asked": list(self.asked),
            "dropped": [[r.client, r.reason] for r in self.dropped],
            "capped": [[c.client, c.ratio] for c in self.capped],
            "fixed": [[r.client, r.reason] for r in self.fixed],
            "skipped": self.skipped,
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any], model: Vector, pairs: Pairs) -> Step:
        """The step that :meth:`to_table` wrote down."""
        return cls(
            round=table["round"],
            model=model,
            clients=tuple(table["clients"]),
            examples=tuple(table["examples"]),
            lengths=tuple(table["lengths"]),
            renewed=tuple(table.get("renewed", ())),
            asked=tuple(table["asked"]),
            dropped=tuple(Rejection(*r) for r in table["dropped"]),
            capped=tuple(Capped(*c) for c in table["capped"]),
            fixed=tuple(Rejection(*r) for r in table["fixed"]),
            skipped=table["skipped"],
            pairs=pairs,
        )


@dataclass(frozen=True, slots=True)
class Harvest:
    """The updates of one replayed round, ready to be aggregated, and how they came about."""

    updates: Updates
    asked: tuple[ClientId, ...] = ()
    dropped: tuple[Rejection, ...] = ()
    capped: tuple[Capped, ...] = ()
    fixed: tuple[Rejection, ...] = ()
    renewed: tuple[float, ...] = ()  # ‖û‖ of each update before it was calibrated

    def applied(self, model: Vector, rule: Aggregate, layout: Layout, round: int) -> Step:
        """M̃ + aggregate; where there is nothing to aggregate, M̃."""
        updates = self.updates
        return Step(
            round=round,
            model=model + rule(updates.vectors, updates.weights) if updates.clients else model,
            clients=updates.clients,
            examples=tuple(updates.weights.tolist()),
            lengths=tuple(norm(row, layout.trained()) for row in updates.vectors),
            renewed=self.renewed,
            asked=self.asked,
            dropped=self.dropped,
            capped=self.capped,
            fixed=self.fixed,
            skipped="" if updates.clients else self._nobody(),
        )

    def _nobody(self) -> str:
        return "no usable answer came" if self.asked else "the round has no honest client"
