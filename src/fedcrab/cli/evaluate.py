"""The command ``evaluate``: measure what ``recover`` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcrab.cli.output import AsJson, Workers, print_next
from fedcrab.cli.recover import show_methods
from fedcrab.extras import need_extra
from fedcrab.progress import Progress
from fedcrab.recover.folder import history_of, recoveries_in

app = typer.Typer()


@app.command(epilog="Example: fedcrab evaluate recovered")
def evaluate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What 'recover' wrote.")],
    membership: Annotated[
        bool, typer.Option(help="Also measure membership inference, with a shadow training.")
    ] = True,
    audit: Annotated[
        bool,
        typer.Option(help="Search each model for a trigger, and try the poisoned model's trigger on it."),
    ] = True,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Measure the recovered models: accuracy, attack success, membership, trigger, cost."""
    need_extra("simulate", "'evaluate'")
    history_of(directory, recoveries_in(directory))
    with Progress(quiet=as_json) as progress:
        progress.stage("Loading the simulator")
        from fedcrab.experiment.run import evaluate_command

        rows = evaluate_command(
            directory, with_membership=membership, with_audit=audit, workers=workers, progress=progress
        )
    show_methods(rows, {}, as_json)
    if not as_json:
        print_next("fedcrab", "report", directory, "-o", "incident.html")
