"""The command ``demo``: the whole story on an embedded data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcrab.cli.output import AsJson, print_json, print_tables
from fedcrab.demo import run_demo

app = typer.Typer()


@app.command(epilog="Example: fedcrab demo --out my-history")
def demo(
    out: Annotated[
        Path | None, typer.Option("--out", help="Keep histories, picture and page in this directory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """A training with hidden attackers, recorded; then every way to recover from them, side by side."""
    with run_demo(out) as result:
        if as_json:
            print_json(result.to_table())
        else:
            print_tables(*result.tables())
