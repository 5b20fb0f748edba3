"""The command ``train``: federated training with recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcrab.cli.output import AsJson, Workers, print_json, print_tables
from fedcrab.extras import need_extra

app = typer.Typer()


@app.command(epilog="Example: fedcrab train paper-mnist --history my-history --set attack.fraction=0.5")
def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A TOML file, or the name of a preset.")],
    directory: Annotated[Path, typer.Option("--history", metavar="DIR", help="Where to record.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a setting.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted training.")] = False,
    head_every: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Print the history's head every N rounds, to note it down."),
    ] = 0,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Train a simulated fleet, attackers and all, and record it.

    Ctrl-C leaves a whole history; --resume continues it, with the same bits as without the interruption.
    """
    need_extra("simulate", "'train'")
    from fedcrab.experiment.train import train_command

    result = train_command(
        config, changes or [], directory, resume=resume, workers=workers, head_every=head_every
    )
    if as_json:
        print_json(result.to_table())
    else:
        print_tables(*result.tables())
