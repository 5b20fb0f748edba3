"""See it, and train: demo, train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcrab.commands.options import AsJson, Workers
from fedcrab.commands.saying import say, say_json
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
            say_json(result.to_table())
        else:
            say(*result.tables())


@app.command(epilog="Example: fedcrab train paper-mnist --history my-history --set attack.fraction=0.5")
def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A TOML file, or the name of a preset.")],
    directory: Annotated[Path, typer.Option("--history", metavar="DIR", help="Where to record.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a setting.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted training.")] = False,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Train a simulated fleet, attackers and all, and record it.

    Ctrl-C leaves a whole history; --resume goes on from it and gives the same bits.
    """
    from fedcrab.experiment.command import train_command

    result = train_command(config, changes or [], directory, resume=resume, workers=workers)
    if as_json:
        say_json(result.to_table())
    else:
        say(*result.tables())
