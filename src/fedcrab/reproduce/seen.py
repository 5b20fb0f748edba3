"""What a claim of the paper is looked for in, and what is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from fedcrab.suite.cells import Point
from fedcrab.suite.tidy import Row

Curves = Mapping[str, Sequence[Point]]  # by the key of a cell


@dataclass(frozen=True)
class Found:
    """Where a claim was looked for, and whether it holds there; ``None``: nothing was run that could tell."""

    holds: bool | None
    told: str = ""


@dataclass(frozen=True)
class Seen:
    """Our rows for an item, and the curves behind them."""

    rows: Sequence[Row]
    curves: Curves

    def mean(self, measure: str, *, method: str, **where: object) -> float | None:
        """A measure's mean over the seeds."""
        values = [r[measure] for r in self.pick(method, **where) if r[measure] is not None]
        return mean(values) if values else None

    def pick(self, method: str, **where: object) -> list[Row]:
        """The rows of a method in a setting."""
        return [r for r in self.rows if r["method"] == method and all(r[k] == v for k, v in where.items())]

    def datasets(self) -> list[str]:
        """Which data sets there are."""
        return list(dict.fromkeys(row["dataset"] for row in self.rows))

    def each(self, look: Callable[[str], tuple[bool, str] | None]) -> Found:
        """A claim that must hold on every data set."""
        looked = [(name, result) for name in self.datasets() if (result := look(name)) is not None]
        told = "; ".join(f"{name}: {words}" for name, (_, words) in looked)
        return Found(all(holds for _, (holds, _) in looked) if looked else None, told)
