"""The command ``verify``: check a history, a seal or a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedcrab.certificate.document import NAME
from fedcrab.certificate.verify import verify_certificate
from fedcrab.cli.output import (
    AsJson,
    HistoryPlace,
    Retrained,
    busy,
    print_json,
    print_next,
    print_tables,
)
from fedcrab.errors import ConfigError
from fedcrab.history.remote import local_place
from fedcrab.history.verify import Verdict
from fedcrab.history.verify import verify as verify_history

app = typer.Typer()


def certificate_at(path: Path) -> Path | None:
    """Return the certificate that a path names: the file itself, or the one in a recovery's folder."""
    if path.is_file():
        return path
    return path / NAME if (path / NAME).is_file() else None


@app.command(epilog="Example: fedcrab verify my-history")
def verify(
    place: Annotated[Path, typer.Argument(metavar="PATH", help="A history, a certificate or its folder.")],
    history: HistoryPlace = None,
    retrained: Retrained = None,
    key: Annotated[Path | None, typer.Option(help="Check the signature with this public key (PEM).")] = None,
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="A head noted elsewhere; it must be in the chain.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a history against its hashes, or recompute a certificate from its history."""
    certificate = certificate_at(place)
    if certificate is None:
        with busy("Checking every hash"):
            verdict = verify_history(local_place(place), head=head, key=key)
        problems, table = verdict.problems, _verdict_table(verdict)
        fine, more = "intact: all hashes match", _verdict_lines(verdict)
    else:
        if head is not None:
            raise ConfigError(f"{certificate}: --head applies to a history, and this is a certificate")
        with busy("Computing the certificate again"):
            problems = verify_certificate(certificate, history=history, retrained=retrained, key=key)
        fine, table, more = "verified: all fields match", {}, []
    if as_json:
        print_json({"ok": not problems, "problems": problems, **table})
    else:
        print_tables(*(problems or (f"{place}: {fine}", *more)))
    if problems:
        raise typer.Exit(2)
    if not as_json:
        following = "detect" if certificate is None else "report"
        print_next("fedcrab", following, place if certificate is None else certificate.parent)


def _verdict_table(verdict: Verdict) -> dict[str, object]:
    return {
        "head": verdict.head,
        "rounds": verdict.rounds,
        "closed": verdict.closed,
        "anchored_rounds": verdict.anchored,
        "signature": verdict.signature,
        "signed_rounds": verdict.signed,
    }


def _verdict_lines(verdict: Verdict) -> list[str | Text]:
    """Return the head, and whether a noted head or a signature confirms it."""
    state = "closed" if verdict.closed else "open"
    head = f"head {verdict.head} ({verdict.rounds} rounds, {state})"
    lines: list[str | Text] = [Text(head, no_wrap=True)]  # in one piece, so that it can be copied
    if verdict.anchored is not None:
        lines.append(f"the given head holds: rounds 0 to {verdict.anchored - 1} are as they were noted")
    if verdict.signed is not None:
        lines.append(f"signature over the first {verdict.signed} rounds: {verdict.signature}")
    return lines
