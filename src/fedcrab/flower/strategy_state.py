"""The state of a strategy between rounds: saved, and restored.

Saved are all attributes of a strategy and its inner strategies that hold arrays (``m_t``, ``v_t``,
``momentum_vector``, ``current_arrays``), and all plain values that changed since the strategy was made
(``clipping_norm``). A strategy with ``state_dict`` and ``load_state_dict`` defines its own state. There is no
pickle: only numbers, texts, and lists and tables of them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from logging import Logger
from pathlib import PurePath
from types import ModuleType
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    QFedAvg,
    Strategy,
)
from flwr.serverapp.strategy.fedopt import FedOpt
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.types import ServerState

LONGEST = 2**16  # characters of one attribute without its arrays; longer ones are not state
SET_ANEW = (  # ``current_arrays`` of these is set by every ``configure_train``
    FedOpt,
    QFedAvg,
    DifferentialPrivacyServerSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
)
NEVER = {"strategy", "accountant", "_pending_events", "configure_train", "aggregate_train"}
OWN_STATE = "state_dict()"
RECORDS: Mapping[str, type[Any]] = {"config": ConfigRecord, "metrics": MetricRecord}


class Opaque(Exception):
    """A value that cannot be stored."""


def chain(strategy: Strategy) -> Iterator[Strategy]:
    """Yield the strategy and its inner strategies, as in the wrappers for differential privacy."""
    inner: Any = strategy
    while isinstance(inner, Strategy):
        yield inner
        inner = getattr(inner, "strategy", None)


class StrategyState:
    """The state of one strategy object; make this right after the strategy."""

    def __init__(self, strategy: Strategy) -> None:
        self._levels = list(chain(strategy))
        self._first = [self._plain_values(level) for level in self._levels]

    def take(self) -> ServerState | None:
        """Return the strategy's current state; None if it has none."""
        arrays: dict[str, NDArray[Any]] = {}
        values: dict[str, Any] = {}
        opaque: list[str] = []
        for place, (level, first) in enumerate(zip(self._levels, self._first, strict=True)):
            for name, value in self._attributes(level):
                found = dict[str, NDArray[Any]]()
                try:
                    text = json.dumps(kept := _encoded(value, found, len(arrays)))
                except Opaque:
                    opaque += [f"{type(level).__name__}.{name}"] if _is_stateful(value) else []
                    continue
                if found or first.get(name) != text:
                    if len(text) > LONGEST:
                        opaque.append(f"{type(level).__name__}.{name}")
                        continue
                    copied = {n: a if _is_flowers(level) else a.copy() for n, a in found.items()}
                    arrays |= copied
                    values[f"{place}.{name}"] = kept
        values |= {"opaque": opaque} if opaque else {}
        return ServerState(arrays, values) if values else None

    def put(self, state: ServerState) -> None:
        """Restore this state."""
        for key, kept in state.values.items():
            if key == "opaque" or ".__" in key:
                continue
            place, _, name = key.partition(".")
            try:
                level, value = self._levels[int(place)], _decoded(kept, state.arrays)
                if name == OWN_STATE:
                    level.load_state_dict(value)  # type: ignore[attr-defined]
                else:
                    setattr(level, name, value)
            except (IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
                kind = type(self._levels[0]).__name__
                raise ConfigError(
                    f"the recorded state of the strategy does not fit {kind}: {key[:80]} ({error})"
                ) from error

    def _attributes(self, level: Strategy) -> Iterator[tuple[str, Any]]:
        if callable(getattr(level, "state_dict", None)) and callable(getattr(level, "load_state_dict", None)):
            yield OWN_STATE, level.state_dict()  # type: ignore[attr-defined]
            return
        for name, value in vars(level).items():
            anew = name == "current_arrays" and isinstance(level, SET_ANEW)
            if name not in NEVER and not anew:
                yield name, value

    def _plain_values(self, level: Strategy) -> dict[str, str]:
        """Return the initial values of attributes without arrays."""
        found = {}
        for name, value in self._attributes(level):
            arrays = dict[str, NDArray[Any]]()
            try:
                text = json.dumps(_encoded(value, arrays, 0))
            except Opaque:
                continue
            if not arrays:
                found[name] = text
        return found


def opaque_attributes(state: ServerState | None) -> list[str]:
    """Return the attributes that could not be stored."""
    found = state.values.get("opaque", []) if state else []
    return [str(name) for name in found] if isinstance(found, list) else []


def is_flowers_own(strategy: Strategy, method: str) -> bool:
    """Return whether every strategy in the chain has Flower's own version of a method."""
    return all(
        getattr(type(level), method).__module__.startswith("flwr.") and method not in vars(level)
        for level in chain(strategy)
    )


def _is_flowers(level: Strategy) -> bool:
    return type(level).__module__.startswith("flwr.")  # their arrays are new in each round


def _is_stateful(value: object) -> bool:
    """Return whether an object that cannot be stored may affect the next round."""
    return not (callable(value) or isinstance(value, type | ModuleType | Logger | PurePath))


def _encoded(value: Any, arrays: dict[str, NDArray[Any]], offset: int) -> Any:
    """Return the value as JSON; arrays are replaced by names and collected separately."""

    def inner(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, np.generic):
            return {"scalar": placed(np.asarray(value))}
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
            return {"array": placed(value)}
        if isinstance(value, Array):
            return {"flower-array": placed(value.numpy())}
        if isinstance(value, ArrayRecord):
            return {"arrays": [[name, placed(array.numpy())] for name, array in value.items()]}
        for kind, record in RECORDS.items():
            if isinstance(value, record):
                return {kind: [[name, inner(item)] for name, item in value.items()]}
        if isinstance(value, dict) and all(isinstance(key, str | int) for key in value):
            return {"table": [[key, inner(item)] for key, item in value.items()]}
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [inner(item) for item in value]}
        if hasattr(value, "detach") and hasattr(value, "cpu"):  # a torch tensor
            return {"tensor": placed(value.detach().cpu().numpy())}
        raise Opaque

    def placed(array: NDArray[Any]) -> str:
        name = str(offset + len(arrays))
        arrays[name] = array
        return name

    return inner(value)


def _decoded(kept: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if not isinstance(kept, dict):
        return kept
    ((kind, inside),) = kept.items()
    if kind == "bytes":
        return base64.b64decode(inside)
    if kind == "scalar":
        return arrays[inside][()]
    if kind == "array":
        return arrays[inside]
    if kind == "flower-array":
        return Array(arrays[inside])
    if kind == "arrays":
        return ArrayRecord({name: Array(arrays[place]) for name, place in inside})
    if kind in RECORDS:
        return RECORDS[kind]({name: _decoded(item, arrays) for name, item in inside})
    if kind == "table":
        return {key: _decoded(item, arrays) for key, item in inside}
    if kind in ("list", "tuple"):
        items = [_decoded(item, arrays) for item in inside]
        return items if kind == "list" else tuple(items)
    if kind == "tensor":
        import torch

        return torch.from_numpy(arrays[inside].copy())
    raise ValueError(f"a value of kind {kind!r}")
