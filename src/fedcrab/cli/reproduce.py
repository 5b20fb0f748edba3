"""The command ``reproduce``: the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from click import Choice

from fedcrab.cli.bench import Jobs, NoRun, Results
from fedcrab.cli.output import AsJson, local_path, print_json, print_next, print_tables
from fedcrab.extras import need_extra
from fedcrab.progress import Progress

app = typer.Typer()
SCALES = ("smoke", "laptop", "full")
ITEMS = (
    *("memory", "time", "curves", "rollback", "backdoor-mnist", "backdoor-others"),
    *("trim", "resilience", "lambda", "delta", "beta", "baselines"),
)
ALL = "all"


@app.command(epilog="Example: fedcrab reproduce backdoor-mnist --scale laptop --out docs")
def reproduce(
    item: Annotated[
        str | None,
        typer.Argument(
            click_type=Choice((*ITEMS, ALL)),
            metavar="NAME",
            help=f"One of {', '.join(ITEMS)}, or {ALL}, the default.",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(click_type=Choice(SCALES), help="Takes half a minute, hours, or days."),
    ] = "smoke",
    results: Results = Path("results"),
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", callback=local_path, help="Write results.md and pictures here."),
    ] = None,
    jobs: Jobs = None,
    no_run: NoRun = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce the paper's tables and figures; show its numbers beside ours and which claims hold.

    An interrupted run resumes. Items share trainings.
    """
    need_extra("simulate", "'reproduce'")
    item = None if item == ALL else item
    with Progress(quiet=as_json) as progress:
        progress.stage("Loading the simulator")
        from fedcrab.reproduce.write_results import reproduce_command

    reproduced = reproduce_command(item, scale, results, out, jobs=jobs, run=not no_run)
    if as_json:
        print_json(reproduced.to_table())
    else:
        print_tables(*reproduced.tables())
        if out is not None:
            print_next("less", out / "results.md")
        elif scale != SCALES[-1]:
            more = [item] if item else []
            print_next("fedcrab", "reproduce", *more, "--scale", "laptop", "--out", "reproduced")
    if reproduced.failed:
        raise typer.Exit(2)
