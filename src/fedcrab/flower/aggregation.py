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
STORED = ("replay", "federaser", "fedrecover")  # these also aggregate updates of clients that are not asked
OLD_MEANS = ("FedAvg", "FedProx")  # by name, for histories that do not say it


@dataclass(frozen=True)
class Aggregation:
    """How a recovery aggregates: by a strategy's rule, or by the mean if that is None."""

    rule: StrategyRule | None
    summary: Mapping[str, Any]  # what the summary says about it; empty for the mean of a mean
    needs: str = ""  # what the strategy needs that stored updates lack

    def method(self, history: History, asked: str | None) -> str | None:
        """Return the method that was asked for, or a default that the strategy can work with."""
        if self.rule is None or not self.needs:
            return asked
        if asked in STORED:
            raise ConfigError(
                f"{self.rule.name} needs {self.needs}, which stored updates do not have; recover with crab "
                "or retrain, or set aggregate='mean'"
            )
        return asked or ("crab-hardened" if default_method(history)[0] in STORED else None)

    def warn_of_fewer_steps(self, history: History, asked: str | None) -> None:
        """Warn that Crab replays the kept rounds only, while a server optimiser makes one step per round."""
        row = METHODS.get(ALIASES.get(asked, asked) if asked else default_method(history)[0])
        kept_only = row is not None and row.by_plan and len(history.kept) < len(history.rounds)
        if self.rule is None or not kept_only:
            return
        log(
            WARNING,
            "fedcrab: crab replays %d of %d rounds, and %s makes one step in each, so the result may be less "
            "trained; use method='retrain', or record with Compact() and use replay",
            len(history.kept),
            len(history.rounds),
            self.rule.name,
        )


def choose_aggregation(history: History, strategy: Strategy | None, asked: str, grid: Grid) -> Aggregation:
    """Return the app's strategy if it is more than a weighted mean; refuse one that cannot be repeated."""
    if asked not in ("", MEAN):
        raise ConfigError(f"aggregate must be 'mean', or empty for the app's own strategy, got {asked!r}")
    notes = RunMetadata.of(history)
    if notes.beside:
        log(WARNING, "fedcrab: the training also sent %s, which is not recorded", ", ".join(notes.beside))
    known = notes.strategy in OLD_MEANS if notes.mean is None else notes.mean
    if asked == MEAN or known:
        why = f"the weighted mean, as requested; the training aggregated by {notes.strategy}"
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
            "recover_if_asked(grid, context, strategy), or set aggregate='mean'"
        )
    inner = strategy.strategy if isinstance(strategy, Recorder) else strategy
    if strategy_name(inner) != notes.strategy:
        raise ConfigError(
            f"{history.path}: the training aggregated by {notes.strategy}, but this app's strategy is "
            f"{strategy_name(inner)}; pass the one that trained, or set aggregate='mean'"
        )
    return Aggregation(
        StrategyRule(inner, history, grid), {"aggregate": notes.strategy}, needs_metrics(inner)
    )
