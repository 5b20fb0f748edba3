"""Recovery on Flower, driven by the run's configuration.

    flwr run . --run-config 'mode="recover" malicious="site-3,site-7"'

| key | meaning |
|---|---|
| mode | `recover`; anything else leaves the app to train |
| malicious | the ids, as the history has them, by commas, quoted as in CSV; `site-3@20`: from round 20 on |
| since | the round from which on all of them are malicious; before it they count as honest |
| history | the directory that the Recorder wrote |
| method | replay, `crab` (that is crab-hardened), crab-paper, federaser, fedrecover, retrain, retrain-few, \
finetune; unless given, replay where the history keeps the updates, else crab-hardened |
| trust, every, asked, settle | of replay: `trust=true` if every attacker is surely named; contact every so \
many rounds, with so many clients; the last so many rounds ask everybody |
| recovered | the directory for the result; each step is kept, and a killed recovery resumes |
| aggregate | `mean`: by FedAvg's mean, whatever the training did; unless given, by the app's strategy |
| unfinished | true: recover a history whose training has not ended |
| beta | how much poison is tolerated; none unless given |
| unfound | how many others may be malicious without anybody knowing: `2`, or a share, `10%` |
| anchor | true: keep every answer and ask all once more at the result, so that `certify` can prove more |
| local-epochs | the epochs of the training, which federaser asks for a share of |
| deadline, quorum, attempts | how long to wait for clients, for what share of them, how often |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from fedcrab.aggregate.mean import Aggregate
from fedcrab.errors import ConfigError, FedcrabError
from fedcrab.flower.arrays import RunMetadata
from fedcrab.flower.fleet import FlowerFleet
from fedcrab.flower.recorder import Recorder
from fedcrab.flower.strategy_rule import StrategyRule, needs_metrics, strategy_name
from fedcrab.flower.waiting import Patience
from fedcrab.history import History
from fedcrab.recover.methods import METHODS, default_method
from fedcrab.recover.run import ALIASES, recover_on_clients
from fedcrab.rollback.decision import Plan
from fedcrab.rollback.malicious import listed, with_since
from fedcrab.types import Fleet, Vector

PLANNED = ("beta", "unfound")  # of the decision, where the run's configuration has them
REPLAYED = ("trust", "every", "asked", "settle")  # of the method replay


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
    strategy: Strategy | None = None,  # as the app makes it for training
    *,
    aggregate: Aggregate | None = None,  # a rule of fedcrab's, in place of the strategy
    patience: Patience | None = None,
) -> Recovered | None:
    """Recover where the run's ``mode`` says so; else None, and the app trains.

    Answers are aggregated by ``strategy``, from the state that it had at the rollback round.
    """
    asked = context.run_config
    if asked.get("mode", "train") != "recover":
        return None
    try:
        history = History.open(_text(asked, "history"))
        _check_finished(history, _yes(asked, "unfinished"))
        begun = with_since(listed(_text(asked, "malicious")), _since(asked), history, {})
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
            malicious=list(begun),
            since={client: start for client, start in begun.items() if start},
            method=method,
            out=Path(_text(asked, "recovered")),
            epochs=_whole(asked, "local-epochs"),
            aggregate=aggregate,
            anchor=_yes(asked, "anchor"),
            told=chosen.told,
            settings={name: asked[name] for name in REPLAYED if asked.get(name, "") != ""},
            **{name: asked[name] for name in PLANNED if asked.get(name, "") != ""},
        )
    except FedcrabError as error:
        log(ERROR, "fedcrab: %s", error)
        raise
    log(INFO, "fedcrab: recovered by %s from round %d", found.method, found.plan.rollback_round)
    return found


def recover_history(
    history: History,
    fleet: Fleet,
    *,
    malicious: list[str],
    out: Path,
    method: str | None = None,
    settings: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    aggregate: Aggregate | None = None,
    since: Mapping[str, int] | None = None,
    anchor: bool = False,
    told: Mapping[str, Any] | None = None,
    **planned: Any,
) -> Recovered:
    """Recover a history that was recorded on Flower; see :func:`fedcrab.recover.run.recover_on_clients`."""
    found = recover_on_clients(
        history,
        fleet,
        malicious=malicious,
        out=out,
        tell=lambda text: log(INFO, "fedcrab: %s", text),
        method=method,
        settings=settings,
        epochs=epochs,
        aggregate=aggregate,
        since=since,
        anchor=anchor,
        told=told,
        **planned,
    )
    arrays = RunMetadata.of(history).model(history).arrays(found.model)
    return Recovered(found.method, found.plan, found.model, arrays, found.steps)


MEAN = "mean"
STORED = ("replay", "federaser", "fedrecover")  # aggregate stored updates, of clients who are not asked
OLD_MEANS = ("FedAvg", "FedProx")  # by name, where a history does not say it


@dataclass(frozen=True)
class Aggregation:
    """How a recovery aggregates: by a strategy's rule, or by the mean where that is None."""

    rule: StrategyRule | None
    told: Mapping[str, Any]  # what the summary says of it, where it is not as a matter of course
    needs: str = ""  # what the strategy needs of each answer that stored updates do not have

    def method(self, history: History, asked: str | None) -> str | None:
        """The method asked for; by default one that has what the strategy needs."""
        if self.rule is None or not self.needs:
            return asked
        if asked in STORED:
            raise ConfigError(
                f"{self.rule.name} needs {self.needs}, which stored updates do not have; recover with crab "
                "or retrain, or say aggregate='mean'"
            )
        return asked or ("crab-hardened" if default_method(history)[0] in STORED else None)

    def warn_of_fewer_steps(self, history: History, asked: str | None) -> None:
        """Crab replays the kept rounds only; an optimiser on the server makes a step per round."""
        row = METHODS.get(ALIASES.get(asked, asked) if asked else default_method(history)[0])
        kept_only = row is not None and row.by_plan and len(history.kept) < len(history.rounds)
        if self.rule is None or not kept_only:
            return
        log(
            WARNING,
            "fedcrab: crab replays %d of %d rounds, and %s makes one step in each, so that it may end short "
            "of the training; method='retrain' does not, nor does replay of a history by Compact()",
            len(history.kept),
            len(history.rounds),
            self.rule.name,
        )


def choose_aggregation(history: History, strategy: Strategy | None, asked: str, grid: Grid) -> Aggregation:
    """The app's strategy, where it is more than a weighted mean; refused where that cannot be repeated."""
    if asked not in ("", MEAN):
        raise ConfigError(f"aggregate is 'mean', or left out for the app's own strategy, got {asked!r}")
    notes = RunMetadata.of(history)
    if notes.beside:
        log(WARNING, "fedcrab: the training also sent %s, which is not recorded", ", ".join(notes.beside))
    known = notes.strategy in OLD_MEANS if notes.mean is None else notes.mean
    if asked == MEAN or known:
        why = f"the weighted mean, as the operator said; the training aggregated by {notes.strategy}"
        return Aggregation(None, {} if known else {"aggregate": MEAN, "aggregation": why})
    if strategy is None:
        if notes.mean is None and not hasattr(strategies, notes.strategy.partition("(")[0]):
            log(
                WARNING,
                "fedcrab: aggregating by the weighted mean; the training did so by %s",
                notes.strategy,
            )
            return Aggregation(None, {})
        raise ConfigError(
            f"{history.path}: the training aggregated by {notes.strategy}; pass the app's strategy, "
            "recover_if_asked(grid, context, strategy), or say aggregate='mean'"
        )
    inner = strategy.strategy if isinstance(strategy, Recorder) else strategy
    if strategy_name(inner) != notes.strategy:
        raise ConfigError(
            f"{history.path}: the training aggregated by {notes.strategy}, and this app's strategy is "
            f"{strategy_name(inner)}; pass the one that trained, or say aggregate='mean'"
        )
    return Aggregation(
        StrategyRule(inner, history, grid), {"aggregate": notes.strategy}, needs_metrics(inner)
    )


def _check_finished(history: History, anyway: bool) -> None:
    if not history.closed and not anyway:
        raise ConfigError(
            f"{history.path}: its training has not ended, or was killed; end it, or say unfinished=true to "
            f"recover from its first {len(history.rounds)} rounds"
        )


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


def _since(asked: Mapping[str, Any]) -> list[str]:
    """The round for all, or such as ``site-3@20``, by commas."""
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
