"""The command ``audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcrab.cli.output import (
    AsJson,
    HistoryPlace,
    print_json,
    print_next,
    print_tables,
)
from fedcrab.errors import ConfigError
from fedcrab.extras import need_extra
from fedcrab.progress import Progress

app = typer.Typer()


@app.command(epilog="Example: fedcrab audit my-history --picture trigger.png")
def audit(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A history, a recovery, or a model's file.")],
    history: HistoryPlace = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Write the mask and a stamped example here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for a trigger in the model: its class, its size, how certain it is, since when.

    Needs the server's probe examples, but no clients. It finds patches, and says what it cannot find. In a
    folder that 'recover' wrote, every model is audited, and the history's trigger is tried on it.
    """
    need_extra("simulate", "an audit")
    from fedcrab.history.remote_store import as_url

    if not path.exists() and as_url(path) is None:
        raise ConfigError(
            f"{path}: no such file or directory; an audit takes a history, a recovery or a model"
        )
    with Progress(quiet=as_json) as progress:
        progress.stage("Loading the simulator")
        from fedcrab.experiment.forensics import audit_command
        from fedcrab.report.trigger import audit_tables, draw_trigger

        progress.stage("Searching for the smallest trigger of each class")
        found = audit_command(path, history=history)
        if picture is not None:
            draw_trigger(picture, next(iter(found.models.values())), found.example)
    if as_json:
        print_json(found.to_table())
    else:
        print_tables(*audit_tables(found))
        if (path / "ledger.sqlite").is_file():
            print_next("fedcrab", "detect", path)
        elif path.is_dir():
            print_next("fedcrab", "report", path, "-o", "incident.html")
