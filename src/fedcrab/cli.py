"""The commands: parse, call, print."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.console import Console

from fedcrab import __version__
from fedcrab.demo import run_demo
from fedcrab.errors import ConfigError, FedcrabError
from fedcrab.history import History
from fedcrab.history.summary import to_table
from fedcrab.report import tables
from fedcrab.report.certificate import certificate_tables
from fedcrab.rollback import PRESETS, plan

app = typer.Typer(
    help="Recover a federated-learning model after poisoning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
INTERRUPTED = 130
Evidence = StrEnum("Evidence", ["all", "stored"])
Rule = StrEnum("Rule", ["prefix", "last"])
Preset = StrEnum("Preset", ["hardened", "paper"])
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a history.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes; one a core unless given.")]
HistoryPlace = Annotated[
    Path | None, typer.Option("--history", metavar="DIR", help="Where the history is, if it was moved.")
]
Retrained = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A retraining; the folder 'retrain' beside, unless told.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def _print(*things: Any) -> None:
    width = None if sys.stdout.isatty() else 120
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    for thing in things:
        console.print(thing)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


@app.callback(invoke_without_command=True)
def version(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Recover a federated-learning model after poisoning."""
    if show_version:
        _print(f"fedcrab {__version__}")
        raise typer.Exit


@app.command(epilog="Example: fedcrab demo --out my-history")
def demo(
    out: Annotated[
        Path | None, typer.Option("--out", help="Keep histories and picture in this directory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """A training with hidden attackers, recorded; then every way to recover from them, side by side."""
    with run_demo(out) as result:
        if as_json:
            _print_json(result.to_table())
        else:
            _print(*result.tables())


@app.command(epilog="Example: fedcrab train paper-mnist --history my-history --set attack.fraction=0.5")
def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A TOML file, or the name of a preset.")],
    directory: Annotated[Path, typer.Option("--history", metavar="DIR", help="Where to record.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a setting.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted training.")] = False,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Train a simulated fleet, attackers and all, and record it.

    Ctrl-C leaves a whole history; --resume goes on from it and gives the same bits.
    """
    from fedcrab.experiment.command import train_command

    result = train_command(config, changes or [], directory, resume=resume, workers=workers)
    if as_json:
        _print_json(result.to_table())
    else:
        _print(*result.tables())


@app.command(epilog="Example: fedcrab show my-history")
def show(
    directory: Directory,
    everything: Annotated[bool, typer.Option("--all", help="Every row of a long history.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rounds, windows, what is kept, clients, bytes."""
    history = History.open(directory)
    if as_json:
        _print_json(to_table(history))
    else:
        _print(tables.history_tables(history, everything=everything))


@app.command("plan", epilog="Example: fedcrab plan my-history --malicious 3,7")
def plan_command(
    directory: Directory,
    malicious: Annotated[str, typer.Option(metavar="IDS", help="Ids of the malicious clients: 3,7")],
    preset: Annotated[Preset, typer.Option(help="The decision to take.")] = Preset.hardened,
    beta: Annotated[float | None, typer.Option(help="Tolerated poison, as a share of honest work.")] = None,
    evidence: Annotated[Evidence | None, typer.Option(help="What counts as evidence.")] = None,
    rule: Annotated[Rule | None, typer.Option(help="Which record wins.")] = None,
    curves: Annotated[bool, typer.Option("--curves", help="Show S and Φ of every record.")] = False,
    as_json: AsJson = False,
) -> None:
    """How far to roll back, what would be replayed and at what cost; nothing is run.

    Both presets are shown; --beta, --evidence and --rule change the chosen one.
    """
    history, bad = History.open(directory), _ids(malicious)
    given = {"beta": beta, "evidence": evidence and evidence.value, "rule": rule and rule.value}
    own = {name: value for name, value in given.items() if value is not None}
    plans = {name: plan(history, bad, **settings) for name, settings in PRESETS.items()}
    chosen = f"{preset.value}, changed" if own else preset.value
    plans = {chosen: plan(history, bad, **{**PRESETS[preset.value], **own}), **plans}
    history.model(plans[chosen].rollback_round)  # a decision for a damaged model is no decision
    if as_json:
        others = {name: p.to_table() for name, p in plans.items()}
        _print_json({"preset": chosen, **plans[chosen].to_table(), "presets": others})
        return
    _print(tables.plans_table(plans), tables.shares_table(plans))
    _print(*(tables.curve_table(p, name) for name, p in plans.items() if curves))
    _print(*tables.warnings_lines(plans))


def _ids(text: str) -> list[str]:
    ids = [part.strip() for part in text.split(",") if part.strip()]
    if not ids:
        raise ConfigError("--malicious names no client; give ids such as --malicious 3,7")
    return ids


@app.command(epilog="Example: fedcrab recover my-history --malicious 3,7 --method all --out recovered")
def recover(
    directory: Directory,
    malicious: Annotated[str, typer.Option(metavar="IDS", help="Ids of the malicious clients: 3,7")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write what is recovered.")],
    method: Annotated[
        str, typer.Option(help="crab-hardened, crab-paper, federaser, fedrecover, retrain, or all.")
    ] = "crab-hardened",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting: beta=0.1, cap=2, settle=4."),
    ] = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the model with the honest clients of a simulated fleet.

    Each step is saved: the same command goes on after an interruption, and gives the same bits.
    """
    from fedcrab.experiment.recover_command import recover_command

    rows, refused = recover_command(
        directory, _ids(malicious), method, out, changes=changes or (), workers=workers
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
        _print_json({"methods": rows, "refused": refused})
        return
    _print(tables.methods_table(rows))
    _print(*(f"{name}: {why}" for name, why in refused.items()))


@app.command("certify", epilog="Example: fedcrab certify recovered/crab-hardened --assume expansion=1")
def certify_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What 'recover' wrote for one method.")],
    assume: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Declare a constant of the training.")
    ] = None,
    history: HistoryPlace = None,
    retrained: Retrained = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of noise on the rollback model.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ of noise on the rollback model.")] = None,
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
        _print_json(table)
    else:
        _print(*certificate_tables(path, table))


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
        _print_json({"ok": not problems, "problems": problems})
    else:
        _print(*(problems or [f"{place}: {fine}"]))
    if problems:
        raise typer.Exit(2)


def main() -> None:
    """Run a command; whatever goes wrong is one sentence and an exit code."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        result = app(arguments, prog_name="fedcrab", standalone_mode=False)
    except (FedcrabError, click.ClickException) as error:
        sentence = error.format_message() if isinstance(error, click.ClickException) else str(error)
        return _fail(sentence, 2)
    except (KeyboardInterrupt, click.Abort):
        result = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        if os.environ.get("FEDCRAB_DEBUG"):
            raise
        kind = type(error).__name__
        return _fail(f"a mistake in fedcrab itself ({kind}: {error}); FEDCRAB_DEBUG=1 shows where", 1)
    if result == INTERRUPTED:  # typer turns Ctrl-C into this
        return _fail("interrupted; what was recorded is whole", INTERRUPTED)
    return result if isinstance(result, int) else 0


def _fail(sentence: str, code: int) -> int:
    plain = " ".join(ascii_safe(sentence).split())
    sys.stderr.write(f"fedcrab: {plain}\n")
    return code


def ascii_safe(text: str) -> str:
    """Without control characters: a name in a message may come from a stranger."""
    return "".join(c if c.isprintable() else " " for c in text)
