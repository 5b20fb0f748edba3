"""The command ``show``: rounds, windows, what is kept, clients, bytes."""

from __future__ import annotations

from typing import Annotated

import typer

from fedcrab.cli.output import (
    AsJson,
    Directory,
    busy,
    print_json,
    print_next,
    print_tables,
)
from fedcrab.history import History
from fedcrab.report import tables
from fedcrab.report.tables import to_table

app = typer.Typer()


@app.command(epilog="Example: fedcrab show my-history")
def show(
    directory: Directory,
    everything: Annotated[bool, typer.Option("--all", help="Show every row of a long history.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a history: rounds, windows, kept models, clients, bytes."""
    with busy("Reading the history"):
        history = History.open(directory)
        found = to_table(history) if as_json else tables.history_tables(history, everything=everything)
    if as_json:
        print_json(found)
    else:
        print_tables(found)
        if history.rounds:
            print_next("fedcrab", "detect", directory)
