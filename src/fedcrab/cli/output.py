"""Arguments and options that several commands have.

What goes to standard output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fedcrab.terminal import console, printable

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a history.")]
HistoryOrRecovery = Annotated[Path, typer.Argument(metavar="DIR", help="A history, or what 'recover' wrote.")]
Malicious = Annotated[
    list[str],
    typer.Option(
        metavar="IDS",
        help="Ids of the malicious clients: 3,7, or 3@20 from round 20 on. An id with a comma is quoted as "
        "in CSV: '\"CN=a,O=b\",7'. @FILE reads them from a file, - from a pipe. Can be repeated.",
    ),
]
Since = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROUND", help="Malicious from this round on; before it they count as honest. Or 3@20 for one."
    ),
]
Epsilon = Annotated[float | None, typer.Option(help="ε of noise on the rollback model.")]
Delta = Annotated[float | None, typer.Option(help="δ of noise on the rollback model.")]
Unfound = Annotated[
    str | None,
    typer.Option(metavar="COUNT", help="Allow for this many undetected attackers: 2, or 20% of all."),
]
Workers = Annotated[int | None, typer.Option(help="Worker processes; default: one per core.")]
HistoryPlace = Annotated[
    Path | None, typer.Option("--history", metavar="DIR", help="Where the history is, if it was moved.")
]
Retrained = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A retraining; default: the folder 'retrain' beside.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def print_tables(*things: Any) -> None:
    """Tables and lines, as wide as the terminal; 120 columns into a pipe."""
    width = None if sys.stdout.isatty() else 120
    out = console(width=width)
    for thing in things:
        line = printable(thing) if isinstance(thing, str) else thing
        out.print(line, soft_wrap=isinstance(thing, Text) and bool(thing.no_wrap))


def print_json(value: Any) -> None:
    """One JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
