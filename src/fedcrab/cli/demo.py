"""The command ``demo``: everything from training to recovery, on an embedded data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcrab.cli.output import AsJson, local_path, print_json, print_next, print_tables
from fedcrab.demo import run_demo
from fedcrab.progress import Progress

app = typer.Typer()


@app.command(epilog="Example: fedcrab demo --out my-history")
def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", callback=local_path, help="Keep histories, picture and page in this directory."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a training under attack, and every way to recover from it, side by side."""
    with Progress(quiet=as_json) as progress, run_demo(out, progress) as result:
        progress.stop()
        if as_json:
            print_json(result.to_table())
        else:
            print_tables(*result.tables())
            following = ("demo", "--out", "demo") if out is None else ("detect", result.history.path)
            print_next("fedcrab", *following)
