"""Recovery on Flower, driven by the run's configuration.

    flwr run . --run-config 'mode="recover" malicious="site-3,site-7" method="crab"'

| key | meaning |
|---|---|
| mode | `recover`; anything else leaves the app to train |
| malicious | the ids, as the history has them |
| history | the directory that the Recorder wrote |
| method | `crab` (that is crab-hardened), crab-paper, federaser, fedrecover, retrain |
| recovered | the directory for the result; each step is kept, and a killed recovery goes on |
| beta | how much poison is tolerated, in place of the method's own |
| unfound | how many others may be malicious without anybody knowing: `2`, or a share, `10%` |
| local-epochs | the epochs of the training, which federaser asks for a share of |
| deadline, quorum, attempts | how long to wait for clients, for what share of them, how often |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from logging import ERROR, INFO
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from fedcrab.aggregate.rule import Aggregate
from fedcrab.errors import ConfigError, FedcrabError
from fedcrab.flower.exchange import Patience
from fedcrab.flower.fleet import FlowerFleet
from fedcrab.flower.notes import Notes
from fedcrab.history import History
from fedcrab.history.disk import explained, sync_directory, write_named
from fedcrab.history.snapshots import write_model
from fedcrab.recover.methods import METHODS, Method
from fedcrab.recover.progress import resumable, saved_model, saved_steps
from fedcrab.rollback import Plan, plan
from fedcrab.types import Fleet, Vector

ALIASES = {"crab": "crab-hardened"}
PLANNED = ("beta", "unfound")  # of the decision, where the run's configuration has them
MODEL, SUMMARY = "model.safetensors", "summary.json"


@dataclass(frozen=True)
class Recovered:
    """What came out of a recovery."""

    method: str
    plan: Plan
    model: Vector = field(repr=False)
    arrays: ArrayRecord = field(repr=False)
    steps: tuple[dict[str, Any], ...] = field(repr=False)


def recover_if_asked(
    grid: Grid,
    context: Context,
    *,
    aggregate: Aggregate | None = None,  # the mean by examples, unless given
    patience: Patience | None = None,
) -> Recovered | None:
    """Recover where the run's ``mode`` says so; else None, and the app goes on to train."""
    asked = context.run_config
    if asked.get("mode", "train") != "recover":
        return None
    try:
        history = History.open(_text(asked, "history"))
        fleet = FlowerFleet(grid, history, patience=patience or patience_of(asked))
        found = recovered(
            history,
            fleet,
            malicious=[part.strip() for part in _text(asked, "malicious").split(",") if part.strip()],
            method=str(asked.get("method", "crab")),
            out=Path(_text(asked, "recovered")),
            epochs=_whole(asked, "local-epochs"),
            aggregate=aggregate,
            **{name: asked[name] for name in PLANNED if asked.get(name, "") != ""},
        )
    except FedcrabError as error:
        log(ERROR, "fedcrab: %s", error)
        raise
    log(INFO, "fedcrab: recovered by %s from round %d", found.method, found.plan.rollback_round)
    return found


def recovered(
    history: History,
    fleet: Fleet,
    *,
    malicious: list[str],
    method: str,
    out: Path,
    epochs: int | None = None,
    aggregate: Aggregate | None = None,
    **planned: Any,
) -> Recovered:
    """Recover a history that was recorded on Flower; going on where an earlier call was killed.

    ``planned`` is the plan's beta or unfound, in place of the method's own.
    """
    name = ALIASES.get(method, method)
    row = _method(name)
    decided = plan(history, malicious, **{**row.plan, **planned})
    for warning in decided.warnings:
        log(INFO, "fedcrab: %s", warning)
    settings = {**row.settings, "aggregate": aggregate, "epochs": epochs}
    row.function(decided, fleet, **settings)  # refused here, before anything is written, if it cannot be
    asked = {key: getattr(decided, key) for key in planned}
    request = {"method": name, **asked, **row.settings, "epochs": epochs}
    for step in resumable(out / name, row.function, decided, fleet, request=request, **settings):
        log(INFO, "fedcrab: round %d replayed with %d clients", step.round, len(step.clients))
    steps = tuple(saved_steps(out / name))
    layout = history.charter.layout
    model = saved_model(out / name, layout) if steps else history.model(decided.rollback_round)
    _write(out / name, history, decided, name, model)
    return Recovered(name, decided, model, Notes.of(history).model(history).arrays(model), steps)


def _write(directory: Path, history: History, decided: Plan, method: str, model: Vector) -> None:
    """Leave the model and a summary, whole."""
    with explained(f"{directory}: the result is not written"):
        directory.mkdir(parents=True, exist_ok=True)
        digest = write_model(directory / MODEL, history.charter.layout, model)
        summary = {
            "method": method,
            "history": str(history.path.absolute()),
            "history_head": history.contents.head,
            "malicious": list(decided.malicious),
            "model_sha256": digest,
            "plan": decided.to_table(),
        }
        write_named(directory / SUMMARY, [json.dumps(summary, indent=1).encode()])
        sync_directory(directory)


def _method(name: str) -> Method:
    if name not in METHODS:
        raise ConfigError(f"no method {name!r}; there are crab, {', '.join(METHODS)}")
    return METHODS[name]


def patience_of(asked: Mapping[str, Any]) -> Patience:
    """How long to wait, as the run's configuration has it."""
    given = {f.name: asked[f.name] for f in fields(Patience) if f.name in asked}
    if any(isinstance(value, str) for value in given.values()):
        raise ConfigError(f"deadline, quorum and attempts must be numbers, got {given}")
    return Patience(**given)


def _text(asked: Mapping[str, Any], key: str) -> str:
    value = asked.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"recovery needs {key!r} in the run's configuration: --run-config '{key}=\"...\"'")
    return value


def _whole(asked: Mapping[str, Any], key: str) -> int | None:
    value = asked.get(key)
    if value is not None and not isinstance(value, int):
        raise ConfigError(f"{key!r} must be a whole number, got {value!r}")
    return value


app = ServerApp()  # recovers and nothing else: serverapp = "fedcrab.flower:app"


@app.main()
def _main(grid: Grid, context: Context) -> None:
    if recover_if_asked(grid, context) is None:
        raise ConfigError('this app only recovers; set mode="recover" in the run\'s configuration')
