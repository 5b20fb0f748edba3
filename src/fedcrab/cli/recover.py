"""The command ``recover``: rebuild the model with the honest clients."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from click import Choice
from rich.console import RenderableType
from rich.text import Text

from fedcrab.cli.output import (
    ACCEPT_EARLIER_NAMES,
    AsJson,
    Delta,
    Epsilon,
    HistoryOrRecovery,
    Malicious,
    Since,
    Undetected,
    Workers,
    local_path,
    print_json,
    print_next,
    print_tables,
)
from fedcrab.evaluate import best_recovery, why_best
from fedcrab.extras import need_extra
from fedcrab.progress import Progress
from fedcrab.recover.folder import MODEL, RecoveryFolder, open_history_or_recovery
from fedcrab.recover.methods import METHODS, default_method
from fedcrab.report import tables
from fedcrab.rollback.malicious import parse_malicious, with_since
from fedcrab.terminal import print_to_stderr, printable
from fedcrab.terminal_table import Column, FittedTable

app = typer.Typer()


@app.command(
    epilog="Example: fedcrab recover my-history --malicious 3,7 --method all --out recovered",
    context_settings=ACCEPT_EARLIER_NAMES,
)
def recover(
    directory: HistoryOrRecovery,
    malicious: Malicious,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", callback=local_path, help="Where to write the recovered models."
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            click_type=Choice((*METHODS, "all")),
            help="How to rebuild the model; default: replay if the history keeps every update, otherwise "
            "crab-hardened.",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a setting: trust=true, every=3, asked=5, settle=2 (replay), cap=2 (Crab), beta=0.1.",
        ),
    ] = None,
    since: Since = None,
    undetected: Undetected = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    anchor: Annotated[
        bool,
        typer.Option(
            "--anchor",
            help="Store every answer, and ask every client once more at the result, to prove more.",
        ),
    ] = False,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the model with the honest simulated clients.

    Each step is saved: the same command resumes after an interruption, and the result is bit-identical. With
    --epsilon and --delta it starts from a noised rollback model; the certificate states what that gives.
    """
    need_extra("simulate", "'recover' with simulated clients")
    from fedcrab.certificate.noise import budget

    noise = budget(epsilon, delta)
    history, earlier = open_history_or_recovery(directory)
    start_rounds = with_since(parse_malicious(malicious, sys.stdin), since or (), history, earlier)
    if method is None:
        method, why = default_method(history)
        if why:
            print_to_stderr(why)

    with Progress(quiet=as_json) as progress:
        progress.stage("Loading the simulator")
        from fedcrab.experiment.run import recover_command

        rows, refused = recover_command(
            history,
            start_rounds,
            method,
            out,
            changes=changes or (),
            unfound=undetected,
            since=start_rounds,
            noise=noise,
            anchor=anchor,
            workers=workers,
            progress=progress,
        )
    show_methods(rows, refused, as_json)
    if not as_json:
        print_tables(*_models(rows, out))
        print_next("fedcrab", "evaluate", out)


def _models(rows: list[dict[str, Any]], out: Path) -> list[RenderableType]:
    """Return where each recovered model is, its hash, and which one to deploy."""
    recovered = {row["method"]: row for row in rows if (out / row["method"] / MODEL).is_file()}
    hashes = {name: RecoveryFolder(out / name).summary["model_sha256"] for name in recovered}
    best = best_recovery(list(recovered.values()))
    lines: list[RenderableType] = []
    if len(recovered) > 1:
        table = FittedTable("Models", "method", Column("sha256", left=True), Column("file", left=True))
        for name, digest in hashes.items():
            table.add_row(name, digest[:16], f"{out / name / MODEL}")
        lines.append(table)
    if best is None:
        return [*lines, "Do not deploy any of them yet: too much of the attack is left."]
    why = why_best(best, list(recovered.values()))
    place = Text(printable(f"Deploy: {out / best / MODEL}"), no_wrap=True)
    return [*lines, place, Text(f"sha256: {hashes[best]}", no_wrap=True), f"By {best}{why and ': '}{why}."]


def show_methods(rows: list[dict[str, Any]], refused: dict[str, str], as_json: bool) -> None:
    """Print what each method recovered, as a table or as JSON."""
    if as_json:
        print_json({"methods": rows, "refused": refused})
        return
    print_tables(tables.methods_table(rows), *tables.misr_note(rows))
    print_tables(*(f"{row['method']}: {row['predicted']}" for row in rows if row.get("predicted")))
    print_tables(*(f"{name}: {why}" for name, why in refused.items()))
