"""A table that fits the terminal and never breaks or cuts a name.

These layouts are tried in order: ruled lines; headings on several lines; no ruled lines; fewer columns, with
a line below that names those left out; one block per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

PROSE = 24  # minimum width in characters of a column of sentences
INDENT, BETWEEN = "  ", Text(" · ")
Cell = str | Text


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and how it may shrink when the terminal is narrow."""

    head: str
    rank: int = 0  # 0: always shown; otherwise the column with the highest number is left out first
    prose: bool = False  # sentences, which may be broken between words
    left: bool = False  # aligned to the left
    name: str = ""  # used where the column is named without its heading

    @property
    def called(self) -> str:
        """The name that is shown when the column is left out."""
        return self.name or self.head


@dataclass(frozen=True, slots=True)
class Fit:
    """The columns that fit, with their widths."""

    places: Sequence[int]
    widths: Sequence[int]
    ruled: bool


class FittedTable:
    """Rows under headings, drawn to fit the width of the terminal."""

    def __init__(self, title: str, *columns: Column | str, caption: str = "") -> None:
        """A string is a column that is always shown. The first column is aligned to the left."""
        made = [Column(c) if isinstance(c, str) else c for c in columns]
        self.columns = [Column(made[0].head, made[0].rank, made[0].prose, left=True), *made[1:]]
        self.title, self.caption, self.rows = title, caption, list[list[Text]]()

    def add_row(self, *cells: Cell) -> None:
        """Add a row, one cell per column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append([cell if isinstance(cell, Text) else Text(cell) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, then a line that names the columns left out."""
        if self.title:
            yield Text(self.title, style="bold")
        found = self.fit(options.max_width)
        if found is None:
            yield from self._blocks(options.max_width)
        else:
            yield self._drawn(found)
            if left_out := self._left_out(found, options.max_width):
                yield left_out
        if self.caption:
            yield Text(self.caption, style="dim italic")

    def fit(self, width: int) -> Fit | None:
        """Return the first layout that fits; None if even the required columns do not."""
        places = list(range(len(self.columns)))
        for ruled, wrapped in ((True, False), (True, True), (False, True)):
            if (widths := self._widths(places, width, ruled=ruled, wrapped=wrapped)) is not None:
                return Fit(places, widths, ruled)
        for place in sorted(places, key=lambda p: (-self.columns[p].rank, -p)):
            if not self.columns[place].rank:
                return None
            places = [p for p in places if p != place]
            for ruled in (True, False):
                if (widths := self._widths(places, width, ruled=ruled, wrapped=True)) is not None:
                    return Fit(places, widths, ruled)
        return None

    def _widths(self, places: Sequence[int], width: int, *, ruled: bool, wrapped: bool) -> list[int] | None:
        """Return a width per column, or None if they do not fit. Columns of sentences get the rest."""
        frame = 3 * len(places) + 1 if ruled else 2 * len(places) - 2
        widths = [self._least(p, wrapped=wrapped) for p in places]
        spare = width - frame - sum(widths)
        if spare < 0:
            return None
        growing = [i for i, p in enumerate(places) if self.columns[p].prose and widths[i] < self._most(p)]
        while spare and growing:
            for i in growing[:spare]:
                widths[i] += 1
                spare -= 1
            growing = [i for i in growing if widths[i] < self._most(places[i])]
        return widths

    def _least(self, place: int, *, wrapped: bool) -> int:
        column = self.columns[place]
        head = _longest_word(column.head) if wrapped else cell_len(column.head)
        if not column.prose:
            return max(head, self._most(place, heading=False))
        words = max((_longest_word(row[place].plain) for row in self.rows), default=0)
        return max(head, words, min(PROSE, self._most(place)))

    def _most(self, place: int, *, heading: bool = True) -> int:
        cells = (cell_len(line) for row in self.rows for line in row[place].plain.splitlines())
        return max(max(cells, default=0), cell_len(self.columns[place].head) if heading else 0)

    def _drawn(self, found: Fit) -> Table:
        table = (
            Table(header_style="bold")
            if found.ruled
            else Table(
                header_style="bold",
                box=box.SIMPLE_HEAD,
                show_edge=False,
                pad_edge=False,
                padding=(0, 1, 0, 0),
            )
        )
        for place, width in zip(found.places, found.widths, strict=True):
            column = self.columns[place]
            head = Text("\n".join(_lines(column.head, width)))
            table.add_column(
                head,
                justify="left" if column.left or column.prose else "right",
                width=width,
                no_wrap=not column.prose,
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*(row[place] for place in found.places))
        return table

    def _left_out(self, found: Fit, width: int) -> Text | None:
        names = [c.called for place, c in enumerate(self.columns) if place not in found.places]
        if not names:
            return None
        least = sum(self._least(p, wrapped=True) for p in range(len(self.columns)))
        needed = least + 2 * len(self.columns) - 2
        return Text(
            f"Left out to fit {width} columns: {', '.join(names)}. {needed} columns show everything, "
            "and so does --json.",
            style="dim",
        )

    def _blocks(self, width: int) -> Iterator[RenderableType]:
        """Yield each row as a block: first its name, then its figures, then each sentence."""
        for row in self.rows:
            yield Text(row[0].plain, style="bold", no_wrap=True, overflow="ignore")
            cells = [pair for pair in zip(self.columns[1:], row[1:], strict=True) if pair[1].plain]
            for line in _in_lines([_named(*pair) for pair in cells if not pair[0].prose], width):
                yield Text.assemble(INDENT, line)
            for pair in cells:
                if pair[0].prose:
                    yield Padding(_named(*pair), (0, 0, 0, len(INDENT)), expand=False)


def _named(column: Column, cell: Text) -> Text:
    """Return a cell with its heading in front; a bar has no heading."""
    return Text.assemble(f"{column.head}: ", cell) if column.head else cell


def _in_lines(figures: Sequence[Text], width: int) -> list[Text]:
    """Return figures side by side, as many per line as fit."""
    lines: list[list[Text]] = []
    for figure in figures:
        if lines and cell_len(BETWEEN.join([*lines[-1], figure]).plain) + len(INDENT) <= width:
            lines[-1].append(figure)
        else:
            lines.append([figure])
    return [BETWEEN.join(line) for line in lines]


def _longest_word(text: str) -> int:
    return max((cell_len(word) for word in text.split()), default=0)


def _lines(head: str, width: int) -> list[str]:
    """Break a heading between words so that no line is wider than ``width``."""
    lines = [""]
    for word in head.split():
        longer = f"{lines[-1]} {word}".strip()
        if cell_len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
