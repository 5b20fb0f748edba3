"""What a history recorded on Flower says about itself, so that a recovery asks as the training asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flwr.app import ConfigRecord

from fedcrab.errors import HistoryError
from fedcrab.flower.arrays import Model
from fedcrab.history import History

KEY = "flower"
ROUND = "server-round"


@dataclass(frozen=True, slots=True)
class Notes:
    """Kept in the charter, as JSON."""

    identity: str  # how clients are named: by registration, or by partition
    strategy: str
    dtypes: Mapping[str, str]
    arrays_key: str = "arrays"
    config_key: str = "config"
    examples_key: str = "num-examples"
    config: Mapping[str, Any] = field(default_factory=dict)  # what was sent along with each model

    def to_json(self) -> str:
        """As text."""
        return json.dumps({KEY: asdict(self)})

    @classmethod
    def of(cls, history: History) -> Notes:
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

    def model(self, history: History) -> Model:
        """What the history's model looks like on Flower's side."""
        return Model(history.charter.layout, self.dtypes)


def plain(config: ConfigRecord | None) -> dict[str, Any]:
    """The settings of a config record that can be kept; the round is set anew each time."""
    kept = {} if config is None else dict(config)
    return {key: value for key, value in kept.items() if key != ROUND and not _has_bytes(value)}


def _has_bytes(value: object) -> bool:
    return isinstance(value, bytes) or (isinstance(value, list) and any(isinstance(v, bytes) for v in value))
