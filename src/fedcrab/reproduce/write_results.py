"""What the command ``reproduce`` does: run the paper's evaluation and write docs/results.md.

The document shows our figures beside the paper's and which of its claims hold. The paper's figures and claims
are in ``paper.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from fedcrab.experiment.cell_cache import CellCache, CellResult
from fedcrab.experiment.matrix import Cell, expand
from fedcrab.experiment.names import look_up
from fedcrab.experiment.run_suite import compute_missing, fitted, markdown, write_tables
from fedcrab.experiment.suite import MEASURES
from fedcrab.experiment.suite_tables import ResultTable, Row, cell, grouped, rows_of, summary, write_text
from fedcrab.recover.crab import crab
from fedcrab.recover.methods import METHODS
from fedcrab.report.curves import draw_losses
from fedcrab.reproduce.claims import TESTS, Observed, Verdict
from fedcrab.reproduce.formulas import formulas
from fedcrab.reproduce.items import ITEMS, SCALES, Item, Scale

CRAB = [name for name, method in METHODS.items() if method.function is crab]


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
        """Return whether one of our rows measures the same thing."""
        same_data = self.dataset in (None, row["dataset"]) and row["dataset"] != "digits"
        same_share = self.fraction in (None, row["fraction"])
        return same_data and same_share and self._same_method(row["method"])

    def _same_method(self, label: str) -> bool:
        method, _, varied = label.partition(" ")
        same = method in CRAB if self.method == "crab" else method == self.method
        return same and varied == self.label


@dataclass(frozen=True)
class Claim:
    """A claim of the paper about its figures; ``test`` names the function that checks it on ours."""

    item: str
    test: str
    says: str
    why: str = ""  # why it does not hold here
    but: str = ""  # what to know if it holds


def _table() -> dict[str, Any]:
    return tomllib.loads(resources.files("fedcrab.reproduce").joinpath("paper.toml").read_text())


def figures(item: str) -> list[Figure]:
    """Return the paper's numbers for an item."""
    return [Figure(**row) for row in _table()["figure"] if row["item"] == item]


def claims(item: str) -> list[Claim]:
    """Return the paper's claims for an item."""
    return [Claim(**row) for row in _table()["claim"] if row["item"] == item]


VERDICTS = {True: "holds", False: "**does not hold**", None: "not run"}
NOT_JUDGED = "not judged at this scale"


@dataclass(frozen=True)
class Section:
    """One item, as far as it has been run."""

    item: Item
    scale: Scale
    cells: Sequence[Cell] = field(repr=False)
    rows: Sequence[Row] = field(repr=False)
    finished: Mapping[str, CellResult] = field(default_factory=dict, repr=False)

    def table(self) -> ResultTable:
        """Return the table of every setting and method."""
        return summary(self.rows, self.item.measures, reference="retrain", compared=self.item.compared)

    def beside(self) -> list[tuple[Figure, Sequence[Row]]]:
        """Return each figure of the paper with our rows for it, one preset at a time."""
        groups = grouped(self.rows).values()
        return [(f, rows) for f in figures(self.item.name) for rows in groups if f.matches(rows[0])]

    def judged(self) -> list[tuple[Claim, Verdict]]:
        """Return each claim of the paper with our verdict; results on digits do not count."""
        real = [row for row in self.rows if row["dataset"] != "digits"]
        seen = Observed(real, {key: finished.curve for key, finished in self.finished.items()})
        return [(claim, TESTS[claim.test](seen)) for claim in claims(self.item.name)]

    @property
    def ran(self) -> str:
        """How much of the item was run."""
        return f"{len(self.rows)} of {len(self.cells)} cells, scale `{self.scale.name}`"

    def busy(self) -> str:
        """Return the load of the machine while times were measured."""
        loads = [finished.made["load"] for finished in self.finished.values() if "load" in finished.made]
        cores = {finished.made.get("cores") for finished in self.finished.values()}
        counts = ", ".join(str(count) for count in sorted(c for c in cores if c))
        return f"Load of the machine during these runs: {min(loads):g} to {max(loads):g} on {counts} cores.\n"

    def verdict(self, found: Verdict) -> str:
        """Return the verdict in words; a scale without the paper's data sets gives none."""
        return VERDICTS[found.holds] if self.scale.judges else NOT_JUDGED

    def to_table(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        verdicts = [
            {"says": claim.says, "found": found.holds, "ours": found.numbers}
            for claim, found in self.judged()
        ]
        ran = {"item": self.item.name, "cells": len(self.cells), "finished": len(self.rows)}
        return {**ran, "claims": verdicts, "rows": list(self.rows)}

    def markdown(self, *, pictures: str) -> str:
        """Return the section as markdown."""
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
            parts.append(markdown(_beside(beside)))
        parts.append("\n".join(self._claim(*judged) for judged in self.judged()) + "\n")
        return parts

    def _claim(self, claim: Claim, found: Verdict) -> str:
        numbers = f" ({found.numbers})" if found.numbers else ""
        more = {False: claim.why, True: claim.but, None: ""}[found.holds]
        return f"- {claim.says}: {self.verdict(found)}{numbers}. {more}".rstrip()

    def tables(self) -> list[RenderableType]:
        """Return tables for the terminal."""
        head = Text(f"\n{self.item.title} ({self.item.name})", style="bold")
        lines: list[RenderableType] = [head, Text(f"{self.item.place}. {self.ran.replace('`', '')}.")]
        if not self.rows:
            return [*lines, Text("Not run yet.")]
        judged = self.judged()
        if self.scale.judges:
            lines += [Text(self._claim(*one).replace("**", "").replace("`", "")) for one in judged]
        elif judged:
            lines.append(Text(f"The paper's {len(judged)} claims about it: {NOT_JUDGED}."))
        if beside := self.beside():
            lines.append(fitted("", _beside(beside)))
        if self.item.name == "memory":
            lines.append(fitted("", formulas(self.rows, self.cells)))
        lines.append(fitted("", self.table()))
        return [*lines, *([Text(self.item.says)] if self.item.says else [])]


def _beside(figures: Sequence[tuple[Figure, Sequence[Row]]]) -> ResultTable:
    """Return the paper's figures beside ours."""
    columns = ("data", "malicious", "method", "measure", "paper", "ours")
    return ResultTable(columns, tuple(_line(figure, rows) for figure, rows in figures))


def _line(figure: Figure, rows: Sequence[Row]) -> tuple[str, ...]:
    first = rows[0]
    value = f"{figure.value:g}{'' if figure.dataset or figure.item != 'resilience' else ' (about)'}"
    named = (first["dataset"], f"{first['fraction']:.0%}", first["method"])
    return (*named, MEASURES[figure.measure], value, cell(rows, figure.measure))


def document(scale: Scale, sections: Sequence[Section], *, pictures: str) -> str:
    """Return the whole document as markdown."""
    return "\n".join(
        [_opening(scale), _verdicts(sections), *(s.markdown(pictures=pictures) for s in sections)]
    )


def _opening(scale: Scale) -> str:
    return (
        "# The paper's evaluation\n\n"
        f"Written by `fedcrab reproduce --scale {scale.name} --out docs` from the cells in `results/`. With "
        "`--no-run` the command writes it again without computing anything.\n\n"
        f"Scale `{scale.name}`: {scale.says}.\n\n"
        "`crab-paper` is Crab as published; `crab-hardened` is the preset of that name with β = 0.3. "
        "Every method recovers from the same trainings, knows the attackers, and is evaluated on the test "
        "set. FedEraser runs at an interval of one, as in the paper.\n\n"
        "Figures are mean ± standard deviation over seeds. Δ is the difference to retraining over the same "
        "seeds, with the p-value of a paired t-test, corrected for the number of comparisons in the table "
        "(Holm). There is no p-value for fewer than three seeds or differences without spread; * marks "
        "p < 0.05. With three seeds, only large differences can be distinguished from noise. The test "
        "assumes that differences are normal.\n"
    )


def _verdicts(sections: Sequence[Section]) -> str:
    """Return all claims in one table."""
    judged = [(s, claim, found) for s in sections for claim, found in s.judged()]
    rows = tuple((s.item.name, claim.says, s.verdict(found)) for s, claim, found in judged)
    return "## Which of the paper's claims hold here\n\n" + markdown(
        ResultTable(("item", "the paper", "here"), rows)
    )


DOCUMENT = "results.md"


@dataclass(frozen=True)
class ReproduceResult:
    """The items, as far as they have been run."""

    scale: Scale
    sections: list[Section]
    failed: dict[str, str]
    written: Path | None

    def to_table(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        items = [section.to_table() for section in self.sections]
        return {"scale": self.scale.name, "says": self.scale.says, "items": items, "failed": self.failed}

    def tables(self) -> list[RenderableType]:
        """Return tables for the terminal."""
        lines = [line for section in self.sections for line in section.tables()]
        lines += [Text(f"{key}: {why}") for key, why in self.failed.items()]
        return [*lines, Text(f"Written to {self.written}")] if self.written else lines


def reproduce_command(
    name: str | None,
    scale: str,
    results: Path,
    out: Path | None,
    *,
    jobs: int | None = None,
    run: bool = True,
) -> ReproduceResult:
    """Run one item or all; write the document and its pictures into ``out`` if it is given."""
    size = look_up("scale", scale, SCALES)
    items = [look_up("item", name, ITEMS)] if name else list(ITEMS.values())
    store = CellCache(results, size.name)
    wanted = {item.name: expand(item.suite(size)) for item in items}
    failed = compute_missing(_all(wanted.values()), store, jobs=jobs) if run else {}
    sections = [_section(item, size, wanted[item.name], store) for item in items]
    for section in sections:
        if section.rows:
            write_tables(results / size.name / section.item.name, section.rows, section.table())
    return ReproduceResult(size, sections, failed, _write(out, size, sections, store) if out else None)


def _section(item: Item, size: Scale, cells: Sequence[Cell], store: CellCache) -> Section:
    found = {cell.key: store.find(cell.key) for cell in cells}
    finished = {key: result for key, result in found.items() if result is not None}
    return Section(item, size, cells, rows_of(cells, store), finished)


def _all(wanted: Iterable[Sequence[Cell]]) -> list[Cell]:
    """Return the cells of all items, in order; cells that items share are computed once."""
    return [cell for cells in wanted for cell in cells]


def _write(out: Path, scale: Scale, sections: Sequence[Section], store: CellCache) -> Path:
    pictures = f"results-{scale.name}"
    for section in sections:
        if section.item.name == "curves" and section.rows:
            draw_losses(out / pictures, section.cells, store)
    write_text(out / DOCUMENT, document(scale, sections, pictures=pictures))
    return out / DOCUMENT
