"""Facts about a training on Flower, stored in its history so that a recovery can ask in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore import log

from fedcrab.errors import ConfigError, HistoryError
from fedcrab.flower.arrays import as_record, numbers
from fedcrab.flower.strategy_state import chain
from fedcrab.history import History
from fedcrab.recording.arrays import ArrayLayout
from fedcrab.recording.engine_notes import from_notes, to_notes

KEY = "flower"
ROUND = "server-round"


@dataclass(frozen=True, slots=True)
class RunMetadata:
    """Stored as JSON in the history's settings."""

    identity: str  # how clients are named: by registration, or by partition
    strategy: str
    dtypes: Mapping[str, str]
    arrays_key: str = "arrays"
    config_key: str = "config"
    examples_key: str = "num-examples"
    config: Mapping[str, Any] = field(default_factory=dict)  # the settings that the first round sent
    mean: bool | None = None  # whether the strategy is FedAvg's weighted mean; None in older histories
    beside: tuple[str, ...] = ()  # further array records in messages, which are not recorded

    def to_json(self) -> str:
        """Return the metadata as JSON."""
        return to_notes(KEY, self)

    @classmethod
    def of(cls, history: History) -> RunMetadata:
        """Return the metadata of a history; raises HistoryError if it was not recorded on Flower."""
        found = from_notes(KEY, cls, history)
        if found is None:
            raise HistoryError(f"{history.path}: not recorded on Flower; recover it with `fedcrab recover`")
        return found

    def check_identity(self, scheme: str, path: Path) -> None:
        """Raise ConfigError if clients are named differently than in the history."""
        if scheme != self.identity:
            raise ConfigError(
                f"{path}: its clients are named by {self.identity}, but the connected ones by {scheme}"
            )

    def model(self, history: History) -> ArrayLayout:
        """Return the layout of the history's model in Flower's arrays."""
        return ArrayLayout(history.charter.layout, self.dtypes, numbers, as_record)


def run_metadata(
    strategy: Strategy,
    scheme: str,
    model: ArrayLayout,
    messages: Sequence[Message],
    *,
    mean: bool,
    common: Mapping[tuple[str, str], Any],  # settings common to the first round's messages, by record and key
) -> RunMetadata:
    """Return the metadata of a new training: its strategy, its model, its first messages."""
    keys = _keys(strategy)
    return RunMetadata(
        scheme,
        strategy_name(strategy),
        model.dtypes,
        *keys,
        config={key: value for (name, key), value in common.items() if name == keys[1]},
        mean=mean,
        beside=_beside(messages, keys[0]),
    )


def strategy_name(strategy: Strategy) -> str:
    """Return the class name of a strategy, with inner strategies in brackets."""
    names = [type(level).__name__ for level in chain(strategy)]
    return "(".join(names) + ")" * (len(names) - 1)


def is_weighted_mean(strategy: Strategy) -> bool:
    """Return whether a strategy aggregates by FedAvg's weighted mean and nothing else."""
    levels = list(chain(strategy))
    own = "aggregate_train" in vars(strategy)
    return len(levels) == 1 and not own and type(strategy).aggregate_train is FedAvg.aggregate_train


def _keys(strategy: Strategy) -> tuple[str, str, str]:
    """Return the strategy's keys for the arrays, the configuration and the number of examples."""
    *_, inner = chain(strategy)
    usual = {"arrayrecord_key": "arrays", "configrecord_key": "config", "weighted_by_key": "num-examples"}
    arrays, config, examples = (str(getattr(inner, name, default)) for name, default in usual.items())
    return arrays, config, examples


def _beside(messages: Sequence[Message], arrays_key: str) -> tuple[str, ...]:
    """Return further array records in messages, and warn that they are not recorded."""
    found = {name for m in messages[:1] for name in m.content.array_records if name != arrays_key}
    if found:
        log(
            WARNING,
            "fedcrab: the messages contain the array records %s in addition to the model; they are not "
            "recorded, and a recovery will not send them",
            ", ".join(sorted(found)),
        )
    return tuple(sorted(found))
