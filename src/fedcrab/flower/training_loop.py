"""The training loop: Flower's, or the strategy's own ``start``; both are recorded."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result, Strategy

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
Hooks = Mapping[str, Callable[..., Any]]  # methods of a strategy, by name


def has_own_start(strategy: Strategy) -> bool:
    """Return whether a strategy has its own ``start``."""
    return type(strategy).start is not Strategy.start or "start" in vars(strategy)


def start_by_itself(strategy: Strategy, given: Mapping[str, Any]) -> Any:
    """Call the strategy's own ``start`` with the arguments that it accepts."""
    taken = inspect.signature(strategy.start).parameters.values()
    names = {p.name for p in taken}
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken)
    known = {n: v for n, v in given.items() if anything or n in names or v is not None}
    return strategy.start(**known)


@contextmanager
def replaced(strategy: Strategy, hooks: Hooks) -> Iterator[None]:
    """Replace these methods of the strategy while its own loop runs."""
    own = {name: vars(strategy)[name] for name in hooks if name in vars(strategy)}
    vars(strategy).update(hooks)
    try:
        yield
    finally:
        for name in hooks:
            del vars(strategy)[name]
        vars(strategy).update(own)


class EvaluateOnce:
    """A function of (round, arrays) that runs once per model, however often it is called."""

    def __init__(self, function: EvaluateFn) -> None:
        self.function = function
        self._known: dict[int, MetricRecord | None] = {}  # results of the last two rounds
        self._last = ""  # hash of the last evaluated model

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Return the function's result for this model."""
        if server_round not in self._known:
            digest = hashlib.sha256()
            for name, array in arrays.items():
                digest.update(name.encode())
                digest.update(array.data)
            same = digest.hexdigest() == self._last
            known = list(self._known.values())
            found = known[-1] if same and known else self.function(server_round, arrays)
            self._last = digest.hexdigest()
            self._known = dict([*self._known.items(), (server_round, found)][-2:])
        return self._known[server_round]


def finished_result(arrays: ArrayRecord) -> Result:
    """Return the result of a training that has no rounds left."""
    result = Result()
    result.arrays = arrays
    return result


def renumbered(result: Result, done: int) -> Result:
    """Return the result of a resumed training with the original round numbers."""
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        metrics = getattr(result, name)
        setattr(result, name, {r + done: found for r, found in metrics.items()})
    return result
