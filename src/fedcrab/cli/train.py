"""The command ``train``: federated training with recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcrab.cli.output import AsJson, Workers, busy, print_json, print_next, print_tables
from fedcrab.errors import HistoryError
from fedcrab.extras import need_extra
from fedcrab.progress import Progress

app = typer.Typer()


@app.command(epilog="Example: fedcrab train paper-mnist --history my-history --set attack.fraction=0.5")
def train(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="A TOML file, or a preset: digits, paper-mnist, paper-fashion-mnist, paper-cifar10.",
        ),
    ],
    directory: Annotated[Path, typer.Option("--history", metavar="DIR", help="Where to record.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting: rounds=10, attack.fraction=0.5."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted training.")] = False,
    head_every: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Print the history's head every N rounds, to note it down."),
    ] = 0,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Train simulated clients, attackers included, and record the training.

    Ctrl-C leaves a complete history; --resume continues it, bit-identical to an uninterrupted run.
    """
    need_extra("simulate", "'train'")
    with busy("Reading the configuration"):
        from fedcrab.experiment.config import load_config
        from fedcrab.experiment.names import check_names

        settings = load_config(config, changes or [])
        check_names(settings)
        _check_place(directory, resume)
    with Progress(quiet=as_json) as progress:
        progress.stage("Loading the simulator")
        from fedcrab.experiment.train import train_command

        result = train_command(
            settings, directory, resume=resume, workers=workers, head_every=head_every, progress=progress
        )
    if as_json:
        print_json(result.to_table())
    else:
        print_tables(*result.tables())
        print_next("fedcrab", "detect", directory)


def _check_place(directory: Path, resume: bool) -> None:
    """Refuse a directory that cannot be recorded into, before anything is loaded."""
    from fedcrab.history import History

    taken = directory.is_symlink() or directory.is_file() or (directory.is_dir() and any(directory.iterdir()))
    if resume or (directory / "ledger.sqlite").is_file():
        history = History.open(directory)
        if resume or not history.rounds:
            return
    if Path.cwd().is_relative_to(directory.resolve()):
        raise HistoryError(f"{directory}: a history needs its own directory; name a new one")
    if taken:
        raise HistoryError(f"{directory}: this directory is not empty; choose another one, or use --resume")
