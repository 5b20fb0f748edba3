"""Arguments and options that several commands share, and how they print."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fedcrab.errors import ConfigError
from fedcrab.progress import Progress
from fedcrab.terminal import console, printable
from fedcrab.types import ClientId, natural

MOST = 200  # client ids offered as shell completions
EARLIER_NAMES = {"unfound": "undetected"}  # options that still work under an earlier name
ACCEPT_EARLIER_NAMES = {"token_normalize_func": lambda name: EARLIER_NAMES.get(name, name)}


def complete_clients(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return shell completions for ``--malicious``: the ids in the given history, also after a comma."""
    from fedcrab.errors import FedcrabError
    from fedcrab.recover.folder import open_history_or_recovery
    from fedcrab.rollback.malicious import quoted

    before, comma, prefix = incomplete.rpartition(",")
    words = [ctx.params.get("directory"), *ctx.args]  # it is among the latter while an option is incomplete
    place = next((str(word) for word in words if word), "")
    try:
        history, _ = open_history_or_recovery(Path(place))
    except (FedcrabError, OSError):
        return []
    named = set(before.split(","))
    ids = (quoted(client) for client in sorted(history.clients, key=natural))
    offered = [f"{before}{comma}{c}" for c in ids if c.startswith(prefix) and c not in named]
    return offered[:MOST]


Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a history.")]
HistoryOrRecovery = Annotated[Path, typer.Argument(metavar="DIR", help="A history, or what 'recover' wrote.")]
Malicious = Annotated[
    list[str],
    typer.Option(
        metavar="IDS",
        autocompletion=complete_clients,
        help="Ids of the malicious clients: 3,7; 3@20 means from round 20 on. Quote an id with a comma as in "
        "CSV: '\"CN=a,O=b\",7'. @FILE reads ids from a file, - from a pipe. Can be repeated.",
    ),
]
Since = Annotated[
    list[str] | None,
    typer.Option(metavar="ROUND", help="They were honest before this round: 20; for client 3 alone: 3@20."),
]
Epsilon = Annotated[float | None, typer.Option(help="Start from a noised rollback model: ε.")]
Delta = Annotated[float | None, typer.Option(help="Start from a noised rollback model: δ.")]
Undetected = Annotated[
    str | None,
    typer.Option(metavar="COUNT", help="Allow for this many undetected attackers: 2, or 20% of all."),
]
Workers = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Worker processes; default: FEDCRAB_WORKERS, or one per core."),
]
HistoryPlace = Annotated[
    Path | None, typer.Option("--history", metavar="DIR", help="Where the history is, if it was moved.")
]
Retrained = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A retraining; default: the folder 'retrain' next to it.")
]


def local_path(path: Path | None) -> Path | None:
    """Refuse a URL as a place to write: as a path it would be a directory called ``s3:``."""
    from fedcrab.history.remote_store import as_url

    if path is not None and (url := as_url(path)) is not None:
        raise ConfigError(f"{url}: results are written to local paths, not to a URL")
    return path


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


PIPED = 120  # columns if there is no terminal, unless COLUMNS says otherwise


def print_tables(*things: Any) -> None:
    """Print tables and lines, as wide as the terminal or as COLUMNS says; 120 columns into a pipe."""
    known_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    out = console(width=None if known_width else PIPED)
    for thing in things:
        line = printable(thing) if isinstance(thing, str) else thing
        out.print(line, soft_wrap=isinstance(thing, Text) and bool(thing.no_wrap), crop=False)


def print_next(*words: str | Path) -> None:
    """Print the next command, ready to be copied."""
    from fedcrab.history.remote_store import as_url

    texts = (as_url(word) or str(word) if isinstance(word, Path) else word for word in words)
    line = "Next: " + " ".join(map(_shell_word, texts))
    print_tables(Text(printable(line), no_wrap=True))


def _shell_word(word: str) -> str:
    """Return a word quoted for a shell; in double quotes if it has single ones and nothing special."""
    return f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else shlex.quote(word)


def malicious_words(start_rounds: Mapping[ClientId, int]) -> list[str]:
    """Return the options that name these clients, and the rounds before which some were honest."""
    from fedcrab.rollback.malicious import quoted

    since = [word for c, t in start_rounds.items() if t for word in ("--since", f"{c}@{t}")]
    return ["--malicious", ",".join(map(quoted, start_rounds)), *since]


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show a moving line on a terminal while the body runs; without a terminal, show nothing."""
    with Progress(quiet=True) as progress:
        progress.stage(what)
        yield


def print_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
