"""For those who ask afterwards: certify, report, verify."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedcrab.commands.options import AsJson, Delta, Epsilon, HistoryPlace, Retrained
from fedcrab.commands.saying import say, say_json
from fedcrab.history import History
from fedcrab.named import named
from fedcrab.report import tables
from fedcrab.report.certificate import certificate_tables

app = typer.Typer()


@app.command("certify", epilog="Example: fedcrab certify recovered/crab-hardened --assume expansion=1")
def certify_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What 'recover' wrote for one method.")],
    assume: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Declare a constant of the training.")
    ] = None,
    history: HistoryPlace = None,
    retrained: Retrained = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    key: Annotated[Path | None, typer.Option(help="Sign with this Ed25519 private key (PEM).")] = None,
    estimate: Annotated[bool, typer.Option(help="Guess constants that are not declared.")] = True,
    as_json: AsJson = False,
) -> None:
    """State what can be proved of a recovery, under what, and bind it to history and models by hashes."""
    from fedcrab.certify import command

    path, table = command.certify_command(
        directory,
        assume=assume or [],
        history=history,
        retrained=retrained,
        epsilon=epsilon,
        delta=delta,
        key=key,
        estimate=estimate,
    )
    if as_json:
        say_json(table)
    else:
        say(*certificate_tables(path, table))


@app.command(epilog="Example: fedcrab report my-history -o incident.html")
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A history, or what 'recover' wrote.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The page.")] = Path(
        "incident.html"
    ),
    malicious: Annotated[str | None, typer.Option(metavar="IDS", help="Marked from the start: 3,7")] = None,
    recovered: Annotated[
        Path | None, typer.Option("--recovered", metavar="DIR", help="What 'recover' wrote.")
    ] = None,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="Judge the kept models too, on simulated test data.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """One HTML file that shows the incident, and answers while one clicks: no server, no network."""
    from fedcrab.report.page.build import find, page_facts, write_page

    history, recoveries = find(directory, recovered)
    bad = named(malicious, sys.stdin) if malicious is not None else ()
    facts = page_facts(history, bad, recoveries, accuracy=accuracy)
    written = write_page(out, facts)
    if as_json:
        say_json({"page": str(out), "bytes": written})
    else:
        say(f"{out}: {tables.size(written)}, opens in any browser")


@app.command(epilog="Example: fedcrab verify my-history")
def verify(
    place: Annotated[Path, typer.Argument(metavar="PATH", help="A history, a certificate or its folder.")],
    history: HistoryPlace = None,
    retrained: Retrained = None,
    key: Annotated[Path | None, typer.Option(help="Check the signature by this public key (PEM).")] = None,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a history against its hashes, or recompute a certificate from its history."""
    from fedcrab.certify import command

    certificate = command.certificate_at(place)
    if certificate is None:
        problems, fine = History.verify(place), "whole, every hash holds"
    else:
        problems = command.verify_certificate(certificate, history=history, retrained=retrained, key=key)
        fine = "every field comes out again"
    if as_json:
        say_json({"ok": not problems, "problems": problems})
    else:
        say(*(problems or [f"{place}: {fine}"]))
    if problems:
        raise typer.Exit(2)
