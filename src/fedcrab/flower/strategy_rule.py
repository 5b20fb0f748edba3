"""The app's own strategy as the rule of a recovery: its optimiser, its median, its clipping, its noise.

The strategy is called as Flower calls it, with the round's original number: ``configure_train`` before a
round, so that it knows the model, then ``aggregate_train`` with the answers. The messages that it configures
are not sent: a recovery sends what the training sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    FedXgbBagging,
    FedXgbCyclic,
    QFedAvg,
    Strategy,
)
from flwr.supercore import log

from fedcrab.aggregate.server_rule import ServerRule
from fedcrab.errors import ConfigError, FleetError
from fedcrab.flower.run_metadata import RunMetadata, strategy_name
from fedcrab.flower.sent_config import RecordedConfig
from fedcrab.flower.strategy_state import StrategyState, chain, is_flowers_own, opaque_attributes
from fedcrab.flower.waiting import PatientGrid
from fedcrab.history import History
from fedcrab.types import ClientId, ServerState, Updates, Vector
from fedcrab.vectors import is_finite

CLIPPING_NORM = "clipping_norm"  # the setting of Flower's client-side clipping
NODES = ("min_available_nodes", "min_train_nodes")  # how many nodes a strategy waits for
NEEDS_METRICS = {  # metrics that these need from each client
    QFedAvg: "each client's loss",
    DifferentialPrivacyClientSideAdaptiveClipping: "whether each client clipped",
}
TREES = FedXgbBagging, FedXgbCyclic
Metrics = Mapping[ClientId, tuple[str, MetricRecord]]  # the record's name, and the record


def needs_metrics(strategy: Strategy) -> str:
    """Return which metrics a strategy needs that only a fresh answer has; "" if none."""
    found = (
        why for level in chain(strategy) for kind, why in NEEDS_METRICS.items() if isinstance(level, kind)
    )
    return next(found, "")


class StrategyRule(ServerRule):
    """A strategy, newly made by the app, that aggregates in a recovery; see the module."""

    def __init__(self, strategy: Strategy, history: History, grid: Grid) -> None:
        if any(isinstance(level, TREES) for level in chain(strategy)):
            raise ConfigError(f"{strategy_name(strategy)} aggregates trees; only arrays can be recovered")
        self.name, self._strategy, self._history = strategy_name(strategy), strategy, history
        self._notes = RunMetadata.of(history)
        self._model, self._sent = self._notes.model(history), RecordedConfig(history, self._notes)
        self._kept, self._grid = StrategyState(strategy), grid
        self._full = [getattr(level, "num_sampled_clients", None) for level in chain(strategy)]
        self.fewest = max(
            1, *(4 * b.num_malicious_nodes + 3 for b in chain(strategy) if isinstance(b, Bulyan)), 0
        )
        self._round_metrics: tuple[int, Metrics] = -1, {}
        self._nodes: dict[ClientId, int] = {}  # clients asked so far
        self._leave_budget_alone()

    def _leave_budget_alone(self) -> None:
        """Detach the privacy accountant, which counts the training's rounds only."""
        for level in chain(self._strategy):
            if getattr(level, "accountant", None) is not None:
                level.accountant = None  # type: ignore[attr-defined]
                log(
                    WARNING,
                    "fedcrab: the privacy accountant of %s does not count the rounds of this recovery; each "
                    "spends as much as a round of the training",
                    type(level).__name__,
                )

    def hear(self, round: int, metrics: Metrics, nodes: Mapping[ClientId, int]) -> None:
        """Keep the metrics of clients for the round that is aggregated next."""
        self._round_metrics = round, metrics
        self._nodes |= nodes

    def _node(self, client: ClientId) -> int:
        return self._nodes.get(client) or number_of(client)

    def settings(self) -> dict[str, Any]:
        """Return settings that depend on the strategy's current state, not on the training's."""
        adaptive = DifferentialPrivacyClientSideAdaptiveClipping
        norms = [level.clipping_norm for level in chain(self._strategy) if isinstance(level, adaptive)]
        return {CLIPPING_NORM: norms[0]} if norms else {}

    def step(self, model: Vector, updates: Updates, *, round: int) -> Vector | str:
        """Return G_t, the strategy's aggregate of these updates, buffers included; or why there is none."""
        arrays, config = self._model.arrays(model, self._sent.absent(round)), self._sent.config(round)
        for level, full in zip(chain(self._strategy), self._full, strict=True):
            if full is not None:  # the noise is divided by it
                level.num_sampled_clients = min(full, len(updates.clients))  # type: ignore[attr-defined]
        try:
            self._configure(round + 1, arrays, config, updates.clients)
            replies = list(self._replies(model, updates, round))
            made, _ = self._strategy.aggregate_train(round + 1, replies)
        except (ConfigError, FleetError):
            raise
        except Exception as error:  # whatever an app's strategy raises
            raise ConfigError(
                f"round {round}: {self.name} cannot aggregate {len(updates.clients)} answers: "
                f"{type(error).__name__}: {error}"
            ) from error
        return "the strategy returned no model" if made is None else self._difference(model, made)

    def _configure(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, clients: Sequence[ClientId]
    ) -> None:
        least = [int(getattr(level, name, 0)) for level in chain(self._strategy) for name in NODES]
        grid = AnsweringGrid(self._grid, [self._node(client) for client in clients], max(least))
        list(self._strategy.configure_train(server_round, arrays, config, grid))

    def _replies(self, model: Vector, updates: Updates, round: int) -> Iterator[Message]:
        """Yield one reply per client: the model that it would have sent, and its metrics."""
        reported, absent = (
            self._round_metrics[1] if self._round_metrics[0] == round else {},
            self._sent.absent(round + 1),
        )
        known = all(client in reported for client in updates.clients)
        for client, row, weight in zip(updates.clients, updates.vectors, updates.weights, strict=True):
            name, metrics = reported[client] if known else ("metrics", MetricRecord())
            record = MetricRecord({**metrics, self._notes.examples_key: _count(weight)})
            content = RecordDict(
                {self._notes.arrays_key: self._model.arrays(model + row, absent), name: record}
            )
            sent = Message(RecordDict(), self._node(client), MessageType.TRAIN)
            yield Message(content, reply_to=sent)

    def _difference(self, model: Vector, made: ArrayRecord) -> Vector | str:
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                after = self._model.flatten(made, rest=model)
            except ValueError as error:
                raise ConfigError(f"{self.name} returned a model of another shape: {error}") from error
            self._model.round_off(after)
            step = after - model
        return step if is_finite(step) and is_finite(after) else "the strategy's model is not finite"

    def state(self) -> ServerState | None:
        """Return the strategy's current state."""
        return self._kept.take()

    def restore(self, state: ServerState | None, *, round: int) -> None:
        """Restore the strategy's state before a round."""
        if state is not None:
            self._kept.put(state)
        opaque = opaque_attributes(state)
        if opaque and round and not is_flowers_own(self._strategy, "aggregate_train"):
            raise ConfigError(
                f"{opaque[0]} cannot be stored in a history, so {self.name} cannot continue from round "
                f"{round}; recover with method='retrain', or set aggregate='mean', or give the strategy "
                "state_dict and load_state_dict before the next training"
            )


class AnsweringGrid(PatientGrid):
    """A grid of the nodes that answered, with placeholders so that no strategy waits for more."""

    def __init__(self, grid: Grid, nodes: Sequence[int], least: int) -> None:
        self._grid, self._asked = grid, 0
        missing = range(1, max(0, least - len(nodes)) + 1)
        self._nodes = [*nodes, *(number_of(f"nobody {n}") for n in missing)]

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that answered, and placeholders."""
        self._asked += 1
        if self._asked > 1000:
            raise FleetError(f"the strategy waits for more than {len(self._nodes)} clients")
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Raise ConfigError: in a recovery, a strategy cannot send messages itself."""
        asked = len(list(messages))
        raise ConfigError(f"the strategy sends {asked} messages in configure_train, which cannot be repeated")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Raise ConfigError, as above."""
        return [] if timeout == 0 else self.pull_messages(self.push_messages(messages))


def number_of(client: ClientId) -> int:
    """Return a stable node id for a client that is not connected."""
    return int.from_bytes(hashlib.sha256(client.encode()).digest()[:7], "big") + 1


def _count(weight: float) -> int | float:
    return int(weight) if float(weight).is_integer() else float(weight)
