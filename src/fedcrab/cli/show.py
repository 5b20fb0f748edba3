"""The command ``show``: rounds, windows, what is kept, clients, bytes."""

from __future__ import annotations

from typing import Annotated

import typer

from fedcrab.cli.output import (
    AsJson,
    Directory,
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
    history = History.open(directory)
    if as_json:
        print_json(to_table(history))
    else:
        print_tables(tables.history_tables(history, everything=everything))
        if history.rounds:
            print_next("fedcrab", "detect", directory)
