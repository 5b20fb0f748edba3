"""What the paper reports: figures and claims, from ``paper.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from fedcrab.suite.tidy import Row


@dataclass(frozen=True)
class Figure:
    """A number of the paper."""

    item: str
    measure: str
    value: float  # shares in per cent
    method: str  # "crab" stands for both presets
    dataset: str | None = None  # None: the paper does not say
    fraction: float | None = None
    label: str = ""  # of the method, where a sweep varies it

    def matches(self, row: Row) -> bool:
        """Whether a row of ours is the same thing."""
        same_data = self.dataset in (None, row["dataset"]) and row["dataset"] != "digits"
        same_share = self.fraction in (None, row["fraction"])
        return same_data and same_share and self._same_method(row["method"])

    def _same_method(self, label: str) -> bool:
        method, _, varied = label.partition(" ")
        same = method.startswith("crab-") if self.method == "crab" else method == self.method
        return same and varied == self.label


@dataclass(frozen=True)
class Claim:
    """What the paper says of its figures; ``test`` names the function that looks for it in ours."""

    item: str
    test: str
    says: str
    why: str = ""  # why it is not found, where it is not
    but: str = ""  # what to know where it is


def _table() -> dict[str, Any]:
    return tomllib.loads(resources.files("fedcrab.reproduce").joinpath("paper.toml").read_text())


def figures(item: str) -> list[Figure]:
    """The paper's numbers for an item."""
    return [Figure(**row) for row in _table()["figure"] if row["item"] == item]


def claims(item: str) -> list[Claim]:
    """The paper's claims for an item."""
    return [Claim(**row) for row in _table()["claim"] if row["item"] == item]
