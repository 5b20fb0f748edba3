"""What the command ``reproduce`` does: run the items of the paper's evaluation, and write them down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.markdown import Markdown
from rich.text import Text

from fedcrab.experiment.names import look_up
from fedcrab.reproduce.document import Section, document
from fedcrab.reproduce.items import ITEMS, Item
from fedcrab.reproduce.pictures import draw_losses
from fedcrab.reproduce.scales import SCALES, Scale
from fedcrab.suite.cells import Cells
from fedcrab.suite.command import compute_missing, write_tables
from fedcrab.suite.expansion import Cell, expand
from fedcrab.suite.tidy import rows_of, write_text

DOCUMENT = "results.md"


@dataclass(frozen=True)
class Reproduced:
    """The items as far as they were run."""

    scale: Scale
    sections: list[Section]
    failed: dict[str, str]
    written: Path | None

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        items = [section.to_table() for section in self.sections]
        return {"scale": self.scale.name, "says": self.scale.says, "items": items, "failed": self.failed}

    def tables(self) -> list[RenderableType]:
        """For people."""
        told: list[RenderableType] = [Markdown(section.markdown(pictures="")) for section in self.sections]
        told += [Text(f"{key}: {why}") for key, why in self.failed.items()]
        return [*told, Text(f"Written to {self.written}")] if self.written else told


def reproduce_command(
    name: str | None,
    scale: str,
    results: Path,
    out: Path | None,
    *,
    jobs: int | None = None,
    run: bool = True,
) -> Reproduced:
    """Run one item or all of them; ``out`` is a directory for the document and its pictures."""
    size = look_up("scale", scale, SCALES)
    items = [look_up("item", name, ITEMS)] if name else list(ITEMS.values())
    store = Cells(results)
    wanted = {item.name: expand(item.suite(size)) for item in items}
    failed = compute_missing(_all(wanted.values()), store, jobs=jobs) if run else {}
    sections = [_section(item, size, wanted[item.name], store) for item in items]
    for section in sections:
        if section.rows:
            write_tables(results / size.name / section.item.name, section.rows, section.table())
    return Reproduced(size, sections, failed, _write(out, size, sections, store) if out else None)


def _section(item: Item, size: Scale, cells: Sequence[Cell], store: Cells) -> Section:
    found = {cell.key: store.find(cell.key) for cell in cells}
    finished = {key: result for key, result in found.items() if result is not None}
    return Section(item, size, cells, rows_of(cells, store), finished)


def _all(wanted: Iterable[Sequence[Cell]]) -> list[Cell]:
    """The cells of all items, in their order; those that items share are computed once."""
    return [cell for cells in wanted for cell in cells]


def _write(out: Path, scale: Scale, sections: Sequence[Section], store: Cells) -> Path:
    pictures = f"results-{scale.name}"
    for section in sections:
        if section.item.name == "curves" and section.rows:
            draw_losses(out / pictures, section.cells, store)
    write_text(out / DOCUMENT, document(scale, sections, pictures=pictures))
    return out / DOCUMENT
