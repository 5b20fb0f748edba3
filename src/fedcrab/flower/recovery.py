"""Recovery on Flower, driven by the run's configuration.

    flwr run . --run-config 'mode="recover" malicious="site-3,site-7"'

| key | meaning |
|---|---|
| mode | `recover`; anything else leaves the app to train |
| malicious | ids of the history, separated by commas, quoted as in CSV; `site-3@20`: from round 20 on |
| since | the round from which all of them are malicious; before it they count as honest |
| history | the directory that the Recorder wrote |
| method | replay, `crab` (that is crab-hardened), crab-paper, federaser, fedrecover, retrain, retrain-few, \
finetune; unless given, replay where the history keeps the updates, else crab-hardened |
| trust, every, asked, settle | for replay: `trust=true` if certainly every attacker is named; how many \
rounds from contact to contact; how many clients are asked; how many of the last rounds ask everybody |
| recovered | the directory for the result; each step is saved, and a killed recovery resumes |
| aggregate | `mean`: FedAvg's mean, whatever the training used; by default the app's strategy |
| unfinished | true: recover a history whose training has not ended |
| beta | how much poison is tolerated; none unless given |
| unfound | allow for this many undetected attackers: `2`, or a share, `10%` |
| anchor | true: save every answer and ask all clients once more at the end, so `certify` can prove more |
| local-epochs | the epochs of the training; federaser asks for a share of them |
| deadline, quorum, attempts | how long to wait for clients, for which share of them, how often to ask |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from logging import ERROR, INFO
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from fedcrab.aggregate.mean import Aggregate
from fedcrab.errors import ConfigError, FedcrabError
from fedcrab.flower.aggregation import Aggregation, choose_aggregation
from fedcrab.flower.fleet import FlowerFleet
from fedcrab.flower.run_metadata import RunMetadata
from fedcrab.flower.waiting import Patience
from fedcrab.history import History
from fedcrab.recover.run import recover_on_clients
from fedcrab.rollback.decision import Plan
from fedcrab.rollback.malicious import listed, with_since
from fedcrab.types import Fleet, Vector

PLANNED = ("beta", "unfound")  # of the decision, where the run's configuration has them
REPLAYED = ("trust", "every", "asked", "settle")  # of the method replay


@dataclass(frozen=True)
class Recovered:
    """The result of a recovery."""

    method: str
    plan: Plan
    model: Vector = field(repr=False)
    arrays: ArrayRecord = field(repr=False)
    steps: tuple[dict[str, Any], ...] = field(repr=False)


def recover_if_asked(
    grid: Grid,
    context: Context,
    strategy: Strategy | None = None,  # as the app makes it for training
    *,
    aggregate: Aggregate | None = None,  # a rule of fedcrab's, in place of the strategy
    patience: Patience | None = None,
) -> Recovered | None:
    """Recover if the run's ``mode`` is ``recover``; otherwise return None, and the app trains.

    ``strategy`` aggregates the answers, starting from its recorded state at the rollback round.
    """
    asked = context.run_config
    if asked.get("mode", "train") != "recover":
        return None
    try:
        history = History.open(_text(asked, "history"))
        _check_finished(history, _yes(asked, "unfinished"))
        start_rounds = with_since(listed(_text(asked, "malicious")), _since(asked), history, {})
        fleet = FlowerFleet(grid, history, patience=patience or patience_of(asked))
        method = str(asked.get("method", "")) or None
        chosen = Aggregation(None, {})
        if aggregate is None:
            chosen = choose_aggregation(history, strategy, str(asked.get("aggregate", "")), grid)
            aggregate = fleet.rule = chosen.rule
            method = chosen.method(history, method)
            chosen.warn_of_fewer_steps(history, method)
        found = recover_history(
            history,
            fleet,
            malicious=list(start_rounds),
            since={client: start for client, start in start_rounds.items() if start},
            method=method,
            out=Path(_text(asked, "recovered")),
            epochs=_whole(asked, "local-epochs"),
            aggregate=aggregate,
            anchor=_yes(asked, "anchor"),
            told=chosen.summary,
            settings={name: asked[name] for name in REPLAYED if asked.get(name, "") != ""},
            **{name: asked[name] for name in PLANNED if asked.get(name, "") != ""},
        )
    except FedcrabError as error:
        log(ERROR, "fedcrab: %s", error)
        raise
    log(INFO, "fedcrab: recovered by %s from round %d", found.method, found.plan.rollback_round)
    return found


def recover_history(
    history: History, fleet: Fleet, *, malicious: list[str], out: Path, **more: Any
) -> Recovered:
    """Recover a history that was recorded on Flower, into ``out``/method.

    ``more`` is as :func:`fedcrab.recover.run.recover_on_clients` takes it.
    """
    more.setdefault("tell", lambda text: log(INFO, "fedcrab: %s", text))
    found = recover_on_clients(history, fleet, malicious=malicious, out=out, **more)
    arrays = RunMetadata.of(history).model(history).arrays(found.model)
    return Recovered(found.method, found.plan, found.model, arrays, found.steps)


def _check_finished(history: History, anyway: bool) -> None:
    if not history.closed and not anyway:
        raise ConfigError(
            f"{history.path}: the training has not ended, or was killed; end it, or set unfinished=true to "
            f"recover from its first {len(history.rounds)} rounds"
        )


def patience_of(asked: Mapping[str, Any]) -> Patience:
    """Return the patience that the run's configuration asks for."""
    given = {f.name: asked[f.name] for f in fields(Patience) if f.name in asked}
    if any(isinstance(value, str) for value in given.values()):
        raise ConfigError(f"deadline, quorum and attempts must be numbers, got {given}")
    return Patience(**given)


def _text(asked: Mapping[str, Any], key: str) -> str:
    value = asked.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"recovery needs {key!r} in the run's configuration: --run-config '{key}=\"...\"'")
    return value


def _since(asked: Mapping[str, Any]) -> list[str]:
    """Return the round for all clients, or items such as ``site-3@20``."""
    return [part.strip() for part in str(asked.get("since", "")).split(",") if part.strip()]


def _whole(asked: Mapping[str, Any], key: str) -> int | None:
    value = asked.get(key)
    if value is not None and not isinstance(value, int):
        raise ConfigError(f"{key!r} must be a whole number, got {value!r}")
    return value


def _yes(asked: Mapping[str, Any], key: str) -> bool:
    value = asked.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{key!r} must be true or false, got {value!r}")
    return value


app = ServerApp()  # recovers and nothing else: serverapp = "fedcrab.flower:app"


@app.main()
def _main(grid: Grid, context: Context) -> None:
    if recover_if_asked(grid, context) is None:
        raise ConfigError('this app only recovers; set mode="recover" in the run\'s configuration')
