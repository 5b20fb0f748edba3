"""The command ``report``: one HTML file that shows the incident."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedcrab.cli.output import (
    AsJson,
    Since,
    busy,
    complete_clients,
    local_path,
    print_json,
    print_next,
    print_tables,
)
from fedcrab.extras import need_extra
from fedcrab.report import tables
from fedcrab.rollback.malicious import parse_malicious, with_since

app = typer.Typer()


@app.command(epilog="Example: fedcrab report my-history -o incident.html")
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A history, or what 'recover' wrote.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FILE", callback=local_path, help="The file to write.")
    ] = Path("incident.html"),
    malicious: Annotated[
        list[str] | None,
        typer.Option(
            metavar="IDS",
            autocompletion=complete_clients,
            help="Clients that are marked when the page opens: 3,7",
        ),
    ] = None,
    since: Since = None,
    recovered: Annotated[
        Path | None,
        typer.Option("--recovered", metavar="DIR", help="Also show these recoveries: what 'recover' wrote."),
    ] = None,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="Also evaluate the kept models, on simulated test data.")
    ] = False,
    key: Annotated[
        Path | None, typer.Option(help="Check the certificates' signatures with this public key (PEM).")
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the incident; default: the history's name.")] = "",
    owner: Annotated[str, typer.Option(help="Who owns the incident.")] = "",
    status: Annotated[str, typer.Option(help="Its state, in your own words, such as: contained.")] = "",
    as_json: AsJson = False,
) -> None:
    """Write the incident page: one HTML file that needs no server and no network."""
    if accuracy:
        need_extra("simulate", "'report --accuracy'")
    with busy("Building the page"):
        from fedcrab.report.page import Incident, find, page_data, write_page

        incident = Incident(title, owner, status)
        history, recoveries = find(directory, recovered)
        ids = parse_malicious(malicious, sys.stdin) if malicious else []
        start_rounds = with_since(ids, since or (), history, {})
        facts = page_data(
            history,
            start_rounds,
            recoveries,
            accuracy=accuracy,
            key=key,
            since=start_rounds,
            incident=incident,
        )
        written = write_page(out, facts)
    if as_json:
        print_json({"page": str(out), "bytes": written})
    else:
        print_tables(f"{out}: {tables.size(written)}, open it in any browser")
        print_next("python", "-m", "webbrowser", out)
