"""What a history recorded on Flower says about itself, so that a recovery asks as the training asked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
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

KEY = "flower"
ROUND = "server-round"


@dataclass(frozen=True, slots=True)
class RunMetadata:
    """Kept in the charter, as JSON."""

    identity: str  # how clients are named: by registration, or by partition
    strategy: str
    dtypes: Mapping[str, str]
    arrays_key: str = "arrays"
    config_key: str = "config"
    examples_key: str = "num-examples"
    config: Mapping[str, Any] = field(default_factory=dict)  # what the first round sent along with the model
    mean: bool | None = None  # whether the strategy takes FedAvg's weighted mean; older histories do not say
    beside: tuple[str, ...] = ()  # array records that messages had beside the model; they are not kept

    def to_json(self) -> str:
        """As text."""
        return json.dumps({KEY: asdict(self)})

    @classmethod
    def of(cls, history: History) -> RunMetadata:
        """Those of a history, which must have been recorded on Flower."""
        names = {f.name for f in history.charter.layout.fields}
        try:
            notes = cls(**json.loads(history.charter.notes)[KEY])
            sound = set(notes.dtypes) == names and isinstance(notes.config, dict)
        except (ValueError, TypeError, KeyError):
            sound = False
        if not sound:
            raise HistoryError(
                f"{history.path}: was not recorded on Flower; recover it with `fedcrab recover`"
            )
        return notes

    def check_identity(self, scheme: str, path: Path) -> None:
        """Clients are named now as they were when the history began."""
        if scheme != self.identity:
            raise ConfigError(f"{path}: its clients are named by {self.identity}, those here by {scheme}")

    def model(self, history: History) -> ArrayLayout:
        """What the history's model looks like on Flower's side."""
        return ArrayLayout(history.charter.layout, self.dtypes, numbers, as_record)


def run_metadata(
    strategy: Strategy,
    scheme: str,
    model: ArrayLayout,
    messages: Sequence[Message],
    *,
    mean: bool,
    common: Mapping[tuple[str, str], Any],  # what all of the first round's messages say, by record and key
) -> RunMetadata:
    """Of a training that begins: its strategy, its model, the messages of its first round."""
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
    """The class of a strategy, with those inside it in brackets."""
    names = [type(level).__name__ for level in chain(strategy)]
    return "(".join(names) + ")" * (len(names) - 1)


def is_weighted_mean(strategy: Strategy) -> bool:
    """Whether what a strategy makes of the answers is FedAvg's mean by examples, and nothing else."""
    levels = list(chain(strategy))
    own = "aggregate_train" in vars(strategy)
    return len(levels) == 1 and not own and type(strategy).aggregate_train is FedAvg.aggregate_train


def _keys(strategy: Strategy) -> tuple[str, str, str]:
    """What the strategy calls the arrays, the configuration and the number of examples."""
    *_, inner = chain(strategy)
    usual = {"arrayrecord_key": "arrays", "configrecord_key": "config", "weighted_by_key": "num-examples"}
    arrays, config, examples = (str(getattr(inner, name, default)) for name, default in usual.items())
    return arrays, config, examples


def _beside(messages: Sequence[Message], arrays_key: str) -> tuple[str, ...]:
    """The array records that messages have beside the model; a warning, as these are not kept."""
    found = {name for m in messages[:1] for name in m.content.array_records if name != arrays_key}
    if found:
        log(
            WARNING,
            "fedcrab: the messages have the array records %s beside the model; they are not recorded, and a "
            "recovery will not send them",
            ", ".join(sorted(found)),
        )
    return tuple(sorted(found))
