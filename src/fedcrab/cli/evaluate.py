"""The command ``evaluate``: measure what ``recover`` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcrab.cli.output import (
    AsJson,
    Workers,
)
from fedcrab.cli.recover import _show_methods
from fedcrab.extras import need_extra

app = typer.Typer()


@app.command(epilog="Example: fedcrab evaluate recovered")
def evaluate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What 'recover' wrote.")],
    membership: Annotated[bool, typer.Option(help="Membership inference too: a shadow training.")] = True,
    audit: Annotated[
        bool, typer.Option(help="Look for a planted trigger in each model, and try the history's own.")
    ] = True,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Accuracy, what is left of the attack, membership, trigger, cost: poisoned beside recovered."""
    need_extra("simulate", "'evaluate'")
    from fedcrab.experiment.run import evaluate_command

    rows = evaluate_command(directory, with_membership=membership, with_audit=audit, workers=workers)
    _show_methods(rows, {}, as_json)
