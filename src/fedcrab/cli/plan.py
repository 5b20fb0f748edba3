"""The command ``plan``: how far to roll back, and what it costs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedcrab.cli.detect import onset_lines
from fedcrab.cli.output import (
    ACCEPT_EARLIER_NAMES,
    AsJson,
    HistoryOrRecovery,
    Malicious,
    Since,
    Undetected,
    busy,
    malicious_words,
    print_json,
    print_next,
    print_tables,
)
from fedcrab.history import History
from fedcrab.recover.cost import planned_costs
from fedcrab.recover.folder import open_history_or_recovery
from fedcrab.report import tables
from fedcrab.rollback.decision import PRESETS, plan
from fedcrab.rollback.malicious import parse_malicious, quoted, with_since
from fedcrab.rollback.onset import onset
from fedcrab.terminal import printable
from fedcrab.types import ClientId

app = typer.Typer()
EvidenceOption = StrEnum("EvidenceOption", ["all", "stored"])
RuleOption = StrEnum("RuleOption", ["prefix", "last"])
PresetOption = StrEnum("PresetOption", ["hardened", "paper"])


@app.command(
    "plan",
    epilog="Example: fedcrab plan my-history --malicious 3,7",
    context_settings=ACCEPT_EARLIER_NAMES,
)
def plan_command(
    directory: HistoryOrRecovery,
    malicious: Malicious,
    since: Since = None,
    preset: Annotated[PresetOption, typer.Option(help="Which decision to make.")] = PresetOption.hardened,
    beta: Annotated[
        float | None, typer.Option(help="Tolerated poison, as a share of honest movement.")
    ] = None,
    evidence: Annotated[
        EvidenceOption | None, typer.Option(help="Count all rounds and clients, or only the stored ones.")
    ] = None,
    rule: Annotated[
        RuleOption | None,
        typer.Option(help="Roll back before S first exceeds Φ, or to the last record with S ≤ Φ."),
    ] = None,
    undetected: Undetected = None,
    curves: Annotated[bool, typer.Option("--curves", help="Show S and Φ for every record.")] = False,
    as_json: AsJson = False,
) -> None:
    """Decide how far to roll back, and what each method would cost; nothing is run.

    Both presets are shown; --beta, --evidence, --rule and --undetected change the chosen one. If more
    attackers are found after a recovery, pass the folder that 'recover' wrote: the plan is made for its
    history, and includes the clients that were named then.
    """
    with busy("Reading the history"):
        history, earlier = open_history_or_recovery(directory)
    start_rounds = with_since(parse_malicious(malicious, sys.stdin), since or (), history, earlier)
    with busy("Deciding how far to roll back"):
        given = {"beta": beta, "evidence": evidence and evidence.value, "rule": rule and rule.value}
        given["unfound"] = undetected
        own = {name: value for name, value in given.items() if value is not None}
        plans = {
            name: plan(history, start_rounds, since=start_rounds, **settings)
            for name, settings in PRESETS.items()
        }
        chosen = f"{preset.value}, changed" if own else preset.value
        if own:
            plans = {
                chosen: plan(history, start_rounds, since=start_rounds, **{**PRESETS[preset.value], **own}),
                **plans,
            }
        else:
            plans = {chosen: plans[chosen], **plans}
        costs = planned_costs(plans[chosen], plans["paper"])
        history.model(plans[chosen].rollback_round)  # raises if the model is damaged
        began = onset(history, start_rounds)
        saving = None
        if began.since and not any(start_rounds.values()):
            saving = plan(history, start_rounds, since=began.since, **{**PRESETS[preset.value], **own})
    if as_json:
        allows = {name: saving.to_table()[name] for name in ("rollback_round", "cost")} if saving else None
        onset_table = {**began.to_table(), "allows": allows}
        others = {name: p.to_table() for name, p in plans.items()}
        methods = {name: cost.to_table() for name, cost in costs.items()}
        shown = {**plans[chosen].to_table(), "methods": methods, "presets": others, "onset": onset_table}
        print_json({"preset": chosen, **shown})
        return
    print_tables(tables.plans_table(plans), tables.costs_table(costs), tables.shares_table(plans))
    print_tables(*(tables.curve_table(p, name) for name, p in plans.items() if curves))
    print_tables(*tables.warnings_lines(plans))
    print_tables(*onset_lines(began, plans[chosen].since, saving))
    _print_next_step(history, directory, start_rounds, undetected)


def _print_next_step(
    history: History, directory: Path, start_rounds: Mapping[ClientId, int], undetected: str | None
) -> None:
    """Print how to recover on the engine that has the clients of this history."""
    engine = history.charter.engine
    ids = ",".join(f"{c}@{t}" if t and quoted(c) == c else quoted(c) for c, t in start_rounds.items())
    if engine == "flower":
        config = {"mode": "recover", "malicious": ids, "history": history.path.absolute()}
        config |= {"recovered": Path("recovered").absolute()} | (
            {"unfound": undetected} if undetected else {}
        )
        run_config = " ".join(f"{name}='{value}'" for name, value in config.items())
        print_tables("In a Flower simulation, add the --federation-config of the training to this command.")
        print_next("flwr", "run", ".", "--run-config", run_config, "--stream")
    elif engine == "nvflare":
        command = ("python", "-m", "fedcrab.nvflare", "TRAINING-JOB-FOLDER", "--history")
        more = ("--set", f"planned={json.dumps({'unfound': undetected})}") if undetected else ()
        where = history.path.absolute()
        print_next(*command, where, *malicious_words(start_rounds), "--recovered", "recovered", *more)
    elif engine == "own":
        bad = "{" + ", ".join(map(repr, start_rounds)) + "}"
        call = f"fedcrab.recover({str(history.path)!r}, fleet, malicious={bad}, out='recovered')"
        print_tables(Text(printable(f"Next, in Python: {call}  # docs/own-loop.md"), no_wrap=True))
    else:
        more = ("--undetected", undetected) if undetected else ()
        print_next(
            "fedcrab", "recover", directory, *malicious_words(start_rounds), *more, "--out", "recovered"
        )
