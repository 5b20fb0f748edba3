"""docs/results.md: what was run at which scale, our figures beside the paper's, and what does not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedcrab.reproduce.claims import TESTS
from fedcrab.reproduce.formulas import formulas
from fedcrab.reproduce.items import Item
from fedcrab.reproduce.paper import Claim, Figure, claims, figures
from fedcrab.reproduce.scales import Scale
from fedcrab.reproduce.seen import Found, Seen
from fedcrab.suite.cells import Finished
from fedcrab.suite.description import MEASURES
from fedcrab.suite.expansion import Cell
from fedcrab.suite.markup import markdown
from fedcrab.suite.tables import Table, cell, grouped, summary
from fedcrab.suite.tidy import Row

VERDICTS = {True: "found", False: "**not found**", None: "not run"}


@dataclass(frozen=True)
class Section:
    """One item as far as it was run."""

    item: Item
    scale: Scale
    cells: Sequence[Cell] = field(repr=False)
    rows: Sequence[Row] = field(repr=False)
    finished: Mapping[str, Finished] = field(default_factory=dict, repr=False)

    def table(self) -> Table:
        """Every setting and method."""
        return summary(self.rows, self.item.measures, reference="retrain", compared=self.item.compared)

    def beside(self) -> list[tuple[Figure, Sequence[Row]]]:
        """Each figure of the paper with our rows of the same thing, a preset at a time."""
        groups = grouped(self.rows).values()
        return [(f, rows) for f in figures(self.item.name) for rows in groups if f.matches(rows[0])]

    def judged(self) -> list[tuple[Claim, Found]]:
        """Each claim of the paper with what we find of it; digits say nothing about it."""
        real = [row for row in self.rows if row["dataset"] != "digits"]
        seen = Seen(real, {key: finished.curve for key, finished in self.finished.items()})
        return [(claim, TESTS[claim.test](seen)) for claim in claims(self.item.name)]

    @property
    def ran(self) -> str:
        """How much of it was run."""
        return f"{len(self.rows)} of {len(self.cells)} cells, scale `{self.scale.name}`"

    def busy(self) -> str:
        """How busy the machine was while times were measured."""
        loads = [finished.made["load"] for finished in self.finished.values() if "load" in finished.made]
        cores = {finished.made.get("cores") for finished in self.finished.values()}
        told = ", ".join(str(count) for count in sorted(c for c in cores if c))
        return f"Load of the machine meanwhile: {min(loads):g} to {max(loads):g} on {told} cores.\n"

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        told = [
            {"says": claim.says, "found": found.holds, "ours": found.told} for claim, found in self.judged()
        ]
        ran = {"item": self.item.name, "cells": len(self.cells), "finished": len(self.rows)}
        return {**ran, "claims": told, "rows": list(self.rows)}

    def markdown(self, *, pictures: str) -> str:
        """The section."""
        head = f"## {self.item.title} (`{self.item.name}`)\n\n{self.item.place}. Run: {self.ran}.\n"
        if not self.rows:
            return f"{head}\nNot run yet.\n"
        parts = [head, *self._paper_parts()]
        if self.item.name == "memory":
            parts.append(markdown(formulas(self.rows, self.cells)))
        if self.item.name == "curves" and pictures:
            datasets = dict.fromkeys(row["dataset"] for row in self.rows)
            parts += [f"![loss on {name}]({pictures}/loss-{name}.png)\n" for name in datasets]
        parts += [markdown(replace(self.table(), note="")), f"{self.item.says}\n" if self.item.says else ""]
        if "seconds_a_round" in self.item.measures:
            parts.append(self.busy())
        return "\n".join(parts).rstrip() + "\n"

    def _paper_parts(self) -> list[str]:
        parts = []
        if beside := self.beside():
            columns = ("data", "malicious", "method", "measure", "paper", "ours")
            parts.append(markdown(Table(columns, tuple(_line(f, rows) for f, rows in beside))))
        parts.append("\n".join(_verdict(claim, found) for claim, found in self.judged()) + "\n")
        return parts


def _line(figure: Figure, rows: Sequence[Row]) -> tuple[str, ...]:
    first = rows[0]
    value = f"{figure.value:g}{'' if figure.dataset or figure.item != 'resilience' else ' (about)'}"
    named = (first["dataset"], f"{first['fraction']:.0%}", first["method"])
    return (*named, MEASURES[figure.measure], value, cell(rows, figure.measure))


def _verdict(claim: Claim, found: Found) -> str:
    told = f" ({found.told})" if found.told else ""
    more = {False: claim.why, True: claim.but, None: ""}[found.holds]
    return f"- {claim.says}: {VERDICTS[found.holds]}{told}. {more}".rstrip()


def document(scale: Scale, sections: Sequence[Section], *, pictures: str) -> str:
    """The whole document."""
    return "\n".join(
        [_opening(scale), _verdicts(sections), *(s.markdown(pictures=pictures) for s in sections)]
    )


def _opening(scale: Scale) -> str:
    return (
        "# The paper's evaluation\n\n"
        f"Written by `fedcrab reproduce --scale {scale.name} --out docs`, from the cells under `results/`; "
        "`--no-run` writes it again without computing anything.\n\n"
        f"Scale `{scale.name}`: {scale.says}.\n\n"
        "`crab-paper` is Crab as published, `crab-hardened` the default here. Every method recovers from the "
        "same trainings, knows who attacked, and is judged on the test part. FedEraser runs at an "
        "interval of one, as in the paper.\n\n"
        "Mean ± standard deviation over seeds; Δ is the difference to retraining over the same seeds, with "
        "the p of a paired t-test, corrected for the comparisons of its table (Holm), none where there are "
        "fewer than three seeds or no spread; * marks p < 0.05. With three seeds only large differences can "
        "be told from noise, and normality of the differences is assumed.\n"
    )


def _verdicts(sections: Sequence[Section]) -> str:
    """All claims on one page."""
    judged = [(s.item.name, claim, found) for s in sections for claim, found in s.judged()]
    rows = tuple((name, claim.says, VERDICTS[found.holds]) for name, claim, found in judged)
    return "## What we find of what the paper says\n\n" + markdown(Table(("item", "the paper", "here"), rows))
