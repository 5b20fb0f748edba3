"""Look, and decide: show, detect, plan."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from fedcrab.commands.options import AsJson, Directory, HistoryOrRecovery, Malicious, Unfound
from fedcrab.commands.saying import say, say_json
from fedcrab.detect import DETECTORS
from fedcrab.history import History
from fedcrab.history.summary import to_table
from fedcrab.named import named, open_with_earlier
from fedcrab.report import tables
from fedcrab.report.suspects import detection_tables
from fedcrab.rollback import PRESETS, plan

app = typer.Typer()
Evidence = StrEnum("Evidence", ["all", "stored"])
Rule = StrEnum("Rule", ["prefix", "last"])
Preset = StrEnum("Preset", ["hardened", "paper"])
Detector = StrEnum("Detector", ["ledger", "fldetector"])


@app.command(epilog="Example: fedcrab show my-history")
def show(
    directory: Directory,
    everything: Annotated[bool, typer.Option("--all", help="Every row of a long history.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rounds, windows, what is kept, clients, bytes."""
    history = History.open(directory)
    if as_json:
        say_json(to_table(history))
    else:
        say(tables.history_tables(history, everything=everything))


@app.command(epilog="Example: fedcrab detect my-history | fedcrab plan my-history --malicious -")
def detect(
    directory: Directory,
    detector: Annotated[Detector, typer.Option(help="How to judge.")] = Detector.ledger,
    everything: Annotated[bool, typer.Option("--all", help="Every client of many.")] = False,
    as_json: AsJson = False,
) -> None:
    """Who seems to be malicious, how sure that is and why; or that there is no sign of attack."""
    detection = DETECTORS[detector.value](History.open(directory))
    if as_json:
        say_json(detection.to_table())
    else:
        say(*detection_tables(detection, everything=everything))


@app.command("plan", epilog="Example: fedcrab plan my-history --malicious 3,7")
def plan_command(
    directory: HistoryOrRecovery,
    malicious: Malicious,
    preset: Annotated[Preset, typer.Option(help="The decision to take.")] = Preset.hardened,
    beta: Annotated[float | None, typer.Option(help="Tolerated poison, as a share of honest work.")] = None,
    evidence: Annotated[Evidence | None, typer.Option(help="What counts as evidence.")] = None,
    rule: Annotated[Rule | None, typer.Option(help="Which record wins.")] = None,
    unfound: Unfound = None,
    curves: Annotated[bool, typer.Option("--curves", help="Show S and Φ of every record.")] = False,
    as_json: AsJson = False,
) -> None:
    """How far to roll back, what would be replayed and at what cost; nothing is run.

    Both presets are shown; --beta, --evidence, --rule and --unfound change the chosen one. After a recovery,
    when more attackers are found: of what 'recover' wrote, the plan is over its history, and those of before
    count too.
    """
    history, earlier = open_with_earlier(directory)
    bad = sorted({*named(malicious, sys.stdin), *earlier})
    given = {"beta": beta, "evidence": evidence and evidence.value, "rule": rule and rule.value}
    given["unfound"] = unfound
    own = {name: value for name, value in given.items() if value is not None}
    plans = {name: plan(history, bad, **settings) for name, settings in PRESETS.items()}
    chosen = f"{preset.value}, changed" if own else preset.value
    plans = {chosen: plan(history, bad, **{**PRESETS[preset.value], **own}), **plans}
    history.model(plans[chosen].rollback_round)  # a decision for a damaged model is no decision
    if as_json:
        others = {name: p.to_table() for name, p in plans.items()}
        say_json({"preset": chosen, **plans[chosen].to_table(), "presets": others})
        return
    say(tables.plans_table(plans), tables.shares_table(plans))
    say(*(tables.curve_table(p, name) for name, p in plans.items() if curves))
    say(*tables.warnings_lines(plans))
