"""What determines a result, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fedcrab.experiment import names
from fedcrab.experiment.config import Config, Named
from fedcrab.suite.method import Resolved, defaults

# Raised whenever the same configuration gives other numbers: every cell of that model is then computed anew.
NUMERICS = {"softmax": 2, "mlp": 2}
NUMERICS_OF_OTHERS = 3
LENGTH = 24  # hexadecimal digits of a key


def identity(config: Config, method: Resolved, *, membership: bool) -> dict[str, Any]:
    """All that determines a cell, as plain values: the defaults of what is named stand in it too."""
    training = config.model_dump(mode="json", exclude={"history"})
    training["aggregation"] = _whole(config.aggregation, names.RULES, "rule")
    training["clients"]["partition"] = _whole(config.clients.partition, names.PARTITIONS, "partition")
    if config.attack is not None:
        training["attack"] |= _whole(config.attack, names.ATTACKS, "attack")
    return {
        "numerics": NUMERICS.get(config.model, NUMERICS_OF_OTHERS),
        "training": training,
        "method": method.to_table(),
        "membership": membership,
    }


def _whole(named: Named, table: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Something named with all its settings, those that are not told as the function has them."""
    own = defaults(names.look_up(kind, named.name, table))
    settings = {name: named.settings.get(name, value) for name, value in own.items()}
    return {"name": named.name, "settings": _plain({**settings, **named.settings})}


def _plain(value: Any) -> Any:
    """As JSON has it; anything else by how it shows itself."""
    if isinstance(value, Mapping):
        return {str(name): _plain(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)


def canonical(value: Any) -> bytes:
    """One way to write it down."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def key_of(identity: Mapping[str, Any]) -> str:
    """The hash of all that determines a cell."""
    return hashlib.sha256(canonical(identity)).hexdigest()[:LENGTH]
