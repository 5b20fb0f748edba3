"""The command ``reproduce``: the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcrab.cli.bench import Jobs, NoRun, Results
from fedcrab.cli.output import AsJson, print_json, print_tables
from fedcrab.extras import need_extra

app = typer.Typer()


@app.command(epilog="Example: fedcrab reproduce backdoor-mnist --scale laptop --out docs")
def reproduce(
    item: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One item, such as time or beta; all unless given.")
    ] = None,
    scale: Annotated[str, typer.Option(help="smoke, laptop or full: how much of it.")] = "smoke",
    results: Results = Path("results"),
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write results.md and pictures here.")
    ] = None,
    jobs: Jobs = None,
    no_run: NoRun = False,
    as_json: AsJson = False,
) -> None:
    """The paper's tables and figures, its numbers beside ours, and which of its claims hold.

    Goes on where it was interrupted; items share trainings.
    """
    need_extra("simulate", "'reproduce'")
    from fedcrab.reproduce.write_results import reproduce_command

    reproduced = reproduce_command(item, scale, results, out, jobs=jobs, run=not no_run)
    if as_json:
        print_json(reproduced.to_table())
    else:
        print_tables(*reproduced.tables())
    if reproduced.failed:
        raise typer.Exit(2)
