"""Compare, and repeat: bench, reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcrab.commands.options import AsJson
from fedcrab.commands.saying import say, say_json

app = typer.Typer()
Results = Annotated[Path, typer.Option(metavar="DIR", help="Where finished cells and tables are kept.")]
Jobs = Annotated[int | None, typer.Option(help="Trainings side by side; one a core unless given.")]
Keep = Annotated[
    bool, typer.Option("--keep", help="Keep the histories, so that more methods need no training.")
]
NoRun = Annotated[bool, typer.Option("--no-run", help="Only write the tables of what is there.")]


@app.command(epilog="Example: fedcrab bench suite.toml --results results")
def bench(
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="A TOML file; docs/commands.md has one.")],
    results: Results = Path("results"),
    jobs: Jobs = None,
    keep: Keep = False,
    no_run: NoRun = False,
    as_json: AsJson = False,
) -> None:
    """A matrix of experiments: what is there already is not computed again.

    Ctrl-C and kills lose nothing that is finished; the same command goes on.
    """
    from fedcrab.suite.command import bench_command

    benched = bench_command(suite, results, jobs=jobs, keep=keep, run=not no_run)
    if as_json:
        say_json(benched.to_table())
    else:
        say(*benched.tables())
    if benched.failed:
        raise typer.Exit(2)


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
    """The paper's tables and figures, its numbers beside ours, and what of its claims is found.

    Goes on where it was interrupted; items share trainings.
    """
    from fedcrab.reproduce.command import reproduce_command

    reproduced = reproduce_command(item, scale, results, out, jobs=jobs, run=not no_run)
    if as_json:
        say_json(reproduced.to_table())
    else:
        say(*reproduced.tables())
    if reproduced.failed:
        raise typer.Exit(2)
