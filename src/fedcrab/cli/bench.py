"""The command ``bench``: a matrix of experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcrab.cli.output import AsJson, busy, print_json, print_next, print_tables
from fedcrab.extras import need_extra
from fedcrab.progress import Progress

app = typer.Typer()
Results = Annotated[Path, typer.Option(metavar="DIR", help="The directory of finished cells and tables.")]
Jobs = Annotated[int | None, typer.Option(help="Trainings in parallel; default: one per core.")]
Keep = Annotated[
    bool, typer.Option("--keep", help="Keep the histories, so that further methods need no training.")
]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Compute on the workers of the Dask scheduler at HOST:PORT."),
]
NoRun = Annotated[bool, typer.Option("--no-run", help="Compute nothing; write the tables of finished cells.")]


@app.command(epilog="Example: fedcrab bench suite.toml --results results")
def bench(
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="A TOML file; docs/commands.md has one.")],
    results: Results = Path("results"),
    jobs: Jobs = None,
    keep: Keep = False,
    cluster: Cluster = None,
    no_run: NoRun = False,
    as_json: AsJson = False,
) -> None:
    """Run a matrix of experiments; finished cells are not computed again.

    Ctrl-C and kills lose no finished cell; the same command resumes.
    """
    need_extra("simulate", "'bench'")
    if cluster is not None:
        need_extra("cluster", "'bench --cluster'")
    with busy("Reading the suite"):
        from fedcrab.experiment.matrix import expand
        from fedcrab.experiment.suite import load_suite

        expand(load_suite(suite))
    with Progress(quiet=as_json) as progress:
        progress.stage("Loading the simulator")
        from fedcrab.experiment.run_suite import bench_command

    benched = bench_command(suite, results, jobs=jobs, keep=keep, run=not no_run, cluster=cluster)
    if as_json:
        print_json(benched.to_table())
    else:
        print_tables(*benched.tables())
        print_next("less", benched.place / "table.md")
    if benched.failed:
        raise typer.Exit(2)
