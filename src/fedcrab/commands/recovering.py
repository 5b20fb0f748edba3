"""Rebuild the model, and judge it: recover, evaluate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedcrab.commands.options import (
    AsJson,
    Delta,
    Epsilon,
    HistoryOrRecovery,
    Malicious,
    Unfound,
    Workers,
)
from fedcrab.commands.saying import say, say_json
from fedcrab.named import named, open_with_earlier
from fedcrab.report import tables

app = typer.Typer()


@app.command(epilog="Example: fedcrab recover my-history --malicious 3,7 --method all --out recovered")
def recover(
    directory: HistoryOrRecovery,
    malicious: Malicious,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write what is recovered.")],
    method: Annotated[
        str, typer.Option(help="crab-hardened, crab-paper, federaser, fedrecover, retrain, or all.")
    ] = "crab-hardened",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting: beta=0.1, cap=2, settle=4."),
    ] = None,
    unfound: Unfound = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the model with the honest clients of a simulated fleet.

    Each step is saved: the same command goes on after an interruption, and gives the same bits. --epsilon and
    --delta have Crab begin at a noised rollback model, drawn once; the certificate states what that gives.
    """
    from fedcrab.certify.command import budget
    from fedcrab.experiment.recover_command import recover_command

    history, earlier = open_with_earlier(directory)
    bad = {*named(malicious, sys.stdin), *earlier}
    rows, refused = recover_command(
        history.path,
        bad,
        method,
        out,
        changes=changes or (),
        unfound=unfound,
        noise=budget(epsilon, delta),
        workers=workers,
    )
    _show_methods(rows, refused, as_json)


@app.command(epilog="Example: fedcrab evaluate recovered")
def evaluate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What 'recover' wrote.")],
    membership: Annotated[bool, typer.Option(help="Membership inference too: a shadow training.")] = True,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Accuracy, what is left of the attack, membership, cost, distance: poisoned beside recovered."""
    from fedcrab.experiment.recover_command import evaluate_command

    rows = evaluate_command(directory, with_membership=membership, workers=workers)
    _show_methods(rows, {}, as_json)


def _show_methods(rows: list[dict[str, Any]], refused: dict[str, str], as_json: bool) -> None:
    if as_json:
        say_json({"methods": rows, "refused": refused})
        return
    say(tables.methods_table(rows))
    say(*(f"{name}: {why}" for name, why in refused.items()))
