"""How a recovery aggregates: by the app's own strategy, or by the weighted mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from flwr.serverapp import Grid
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from fedcrab.errors import ConfigError
from fedcrab.flower.recorder import Recorder
from fedcrab.flower.run_metadata import RunMetadata, strategy_name
from fedcrab.flower.strategy_rule import StrategyRule, needs_metrics
from fedcrab.history import History
from fedcrab.recover.methods import METHODS, default_method
from fedcrab.recover.run import ALIASES

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
