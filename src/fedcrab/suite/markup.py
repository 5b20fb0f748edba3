"""Tables as markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from fedcrab.suite.tables import Table

LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "λ": r"$\lambda$",
    "δ": r"$\delta$",
    "β": r"$\beta$",
    "×": r"$\times$",
    "−": r"$-$",
}


def markdown(table: Table) -> str:
    """As GitHub reads it."""
    lines = [_markdown_line(table.columns), "|" + "---|" * len(table.columns)]
    lines += [_markdown_line(row) for row in table.rows]
    return "\n".join(lines) + "\n" + (f"\n{table.note}\n" if table.note else "")


def _markdown_line(words: Sequence[str]) -> str:
    safe = (word.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ") for word in words)
    return "| " + " | ".join(safe) + " |"


def comma_separated(table: Table) -> str:
    """As spreadsheets read it."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([table.columns, *table.rows])
    return text.getvalue()


def latex(table: Table) -> str:
    """As a tabular with the rules of booktabs."""
    lines = [r"\begin{tabular}{" + "l" * len(table.columns) + "}", r"\toprule"]
    lines += [_latex_line(table.columns), r"\midrule", *(_latex_line(row) for row in table.rows)]
    lines += [r"\bottomrule", r"\end{tabular}"]
    note = [f"% {line}" for line in table.note.splitlines()]
    return "\n".join([*note, *lines]) + "\n"


def _latex_line(words: Sequence[str]) -> str:
    return " & ".join(escaped(word) for word in words) + r" \\"


def escaped(word: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(LATEX.get(letter, letter) for letter in word)
