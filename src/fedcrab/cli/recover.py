"""The command ``recover``: rebuild the model with the honest clients."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedcrab.cli.output import (
    AsJson,
    Delta,
    Epsilon,
    HistoryOrRecovery,
    Malicious,
    Since,
    Unfound,
    Workers,
    print_json,
    print_tables,
)
from fedcrab.extras import need_extra
from fedcrab.recover.folder import open_history_or_recovery
from fedcrab.recover.methods import default_method
from fedcrab.report import tables
from fedcrab.rollback.malicious import parse_malicious, with_since
from fedcrab.terminal import tell_aside

app = typer.Typer()


@app.command(epilog="Example: fedcrab recover my-history --malicious 3,7 --method all --out recovered")
def recover(
    directory: HistoryOrRecovery,
    malicious: Malicious,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write what is recovered.")],
    method: Annotated[
        str | None,
        typer.Option(
            help="replay (the default where the history keeps the updates), crab-hardened (the default "
            "elsewhere), crab-paper, federaser, fedrecover, retrain, retrain-few, finetune, or all."
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
    unfound: Unfound = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    anchor: Annotated[
        bool,
        typer.Option(
            "--anchor",
            help="Keep every answer and ask all once more at the result: the certificate proves more.",
        ),
    ] = False,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the model with the honest clients of a simulated fleet.

    Each step is saved: the same command resumes after an interruption, and the result is bit-identical.
    --epsilon and --delta have it begin at a noised rollback model; the certificate states what that gives.
    """
    need_extra("simulate", "'recover' with simulated clients")
    from fedcrab.certificate.noise import budget
    from fedcrab.experiment.run import recover_command

    history, earlier = open_history_or_recovery(directory)
    begun = with_since(parse_malicious(malicious, sys.stdin), since or (), history, earlier)
    if method is None:
        method, why = default_method(history)
        if why:
            tell_aside(why)
    rows, refused = recover_command(
        history,
        begun,
        method,
        out,
        changes=changes or (),
        unfound=unfound,
        since=begun,
        noise=budget(epsilon, delta),
        anchor=anchor,
        workers=workers,
    )
    _show_methods(rows, refused, as_json)


def _show_methods(rows: list[dict[str, Any]], refused: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json({"methods": rows, "refused": refused})
        return
    print_tables(tables.methods_table(rows))
    print_tables(*(f"{row['method']}: {row['predicted']}" for row in rows if row.get("predicted")))
    print_tables(*(f"{name}: {why}" for name, why in refused.items()))
