"""`python -m fedcrab.nvflare`: from a training's job folder the job that recovers its model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedcrab.errors import FedcrabError
from fedcrab.name_value import split_pair
from fedcrab.nvflare.job_folder import make_recovery_job
from fedcrab.terminal import printable

Others = Annotated[
    list[str] | None,
    typer.Option("--set", help="Another setting of fedcrab.nvflare.Recovery, as name=value: quorum=0.8."),
]


def main(
    training: Annotated[Path, typer.Argument(help="The folder of the recorded job.")],
    history: Annotated[Path, typer.Option(help="The history, where the server finds it.")],
    malicious: Annotated[
        str, typer.Option(help="Names of sites, with commas between; site-3@20: since round 20.")
    ],
    recovered: Annotated[Path, typer.Option(help="Where the server writes the result.")],
    out: Annotated[Path, typer.Option(help="The folder to write the job to.")] = Path("recovery-job"),
    method: Annotated[
        str, typer.Option(help="Unless given: replay if the updates are kept, else crab.")
    ] = "",
    since: Annotated[
        list[str] | None, typer.Option(help="The round from which on all are malicious, or site-3@20.")
    ] = None,
    min_clients: Annotated[int | None, typer.Option(help="Sites that the job waits for to start.")] = None,
    settings: Others = None,
) -> None:
    """Write the job that recovers a model, from the folder of the job that trained it.

    Example: python -m fedcrab.nvflare jobs/digits --history /srv/history --malicious site-2
    --recovered /srv/recovered, then nvflare job submit -j recovery-job.
    """
    given = {
        "history": str(history.absolute()),
        "malicious": malicious,
        "recovered": str(recovered.absolute()),
    }
    chosen = {"method": method, "since": since or []}
    try:
        more = {**{name: value for name, value in chosen.items() if value}, **_parsed(settings or [])}
        made = make_recovery_job(training, out, min_clients=min_clients, **given, **more)
    except FedcrabError as error:
        typer.echo(f"Error: {printable(str(error))}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{printable(str(made))}: the job of the recovery")
    typer.echo(f"Next: nvflare job submit -j {printable(str(made))}")


def _parsed(settings: list[str]) -> dict[str, Any]:
    """Values as JSON, where they are; text otherwise."""
    found: dict[str, Any] = {}
    for setting in settings:
        name, value = split_pair(setting, option="--set", example="quorum=0.8")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


if __name__ == "__main__":
    typer.run(main)
