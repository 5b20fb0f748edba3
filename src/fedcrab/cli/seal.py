"""The command ``seal``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedcrab.cli.output import (
    AsJson,
    Directory,
    busy,
    print_json,
    print_next,
    print_tables,
)
from fedcrab.history.anchor import SIGNATURE
from fedcrab.history.verify import seal
from fedcrab.terminal import printable

app = typer.Typer()


@app.command("seal", epilog="Example: fedcrab seal my-history --key private.pem")
def seal_command(
    directory: Directory,
    key: Annotated[Path, typer.Option(help="Sign with this Ed25519 private key (PEM).")],
    as_json: AsJson = False,
) -> None:
    """Check a history and sign its head, so that nobody without the key can rewrite it unnoticed."""
    with busy("Checking every hash"):
        table = seal(directory, key)
    if as_json:
        print_json(table)
    else:
        line = f"{directory / SIGNATURE}: head {table['head']} signed, over {table['rounds']} rounds"
        print_tables(Text(printable(line), no_wrap=True))
        print_next("fedcrab", "verify", directory, "--key", "public.pem")
