"""The clients behind a grid as a fleet, so that every recovery method runs on them unchanged.

A node's id is stable, and no other node can claim it:

- A node that the operator registered with a name has that name. Only the operator assigns names, and the node
  signs every request with the registered key.
- Any other node of a deployment is ``key-`` and the hash of the public key that it signs its requests with.
- In a simulation the id is the partition id; the engine assigns partitions in the order of registration.

A node that was never registered makes a new key at each start, so its id is valid for one start only.
Nothing that a node says about itself is used as an id.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore import log

from fedcrab.admission import bad_id, printable
from fedcrab.errors import ConfigError, FleetError
from fedcrab.flower.replies import ReplyCollector
from fedcrab.flower.run_metadata import ROUND, RunMetadata
from fedcrab.flower.sent_config import RecordedConfig
from fedcrab.flower.strategy_rule import StrategyRule
from fedcrab.flower.waiting import Patience, ask_nodes
from fedcrab.history import History
from fedcrab.types import ClientId, Rejection, Updates, Vector, natural

FOREVER = 1e299  # a heartbeat that only the simulation engine sets; a SuperNode cannot ask for it
NOBODY = ("", "none")  # the owner where there are no accounts
SIMULATION_STARTS = 30.0  # seconds after which the simulation engine has registered all its clients


class Identities:
    """Maps clients to nodes, as reported by the SuperLink."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._warned: set[ClientId] = set()

    def scheme(self) -> str:
        """Return how ids are made: ``registered`` in a deployment, ``partition`` in a simulation."""
        return _scheme(list(self._grid.get_nodes()))

    def nodes(self) -> dict[ClientId, int]:
        """Return the node of each connected client."""
        found = list(self._grid.get_nodes())
        if _scheme(found) == "partition":
            return _partitions(found)
        ids = [_registered(node) for node in found]
        self._warn(client for client, node in zip(ids, found, strict=True) if not node.name)
        _check_unique(ids)
        return {client: node.node_id for client, node in zip(ids, found, strict=True)}

    def clients(self) -> dict[int, ClientId]:
        """Return the client of each connected node."""
        return {node: client for client, node in self.nodes().items()}

    def _warn(self, nameless: Iterable[ClientId]) -> None:
        if new := sorted(set(nameless) - self._warned):
            self._warned.update(new)
            log(
                WARNING,
                "fedcrab: no registered name for %s. Without SuperNode authentication a node gets a new key, "
                "and so a new id, at each start: its rounds look like those of a stranger, and a recovery "
                "after a restart does not find it. Register keys with `flwr supernode register KEY --name "
                "NAME` and start the SuperLink with --enable-supernode-auth.",
                ", ".join(new[:20]),
            )


def _scheme(nodes: Sequence[NodeInfo]) -> str:
    return "partition" if nodes and all(n.heartbeat_interval > FOREVER for n in nodes) else "registered"


def _partitions(nodes: Sequence[NodeInfo]) -> dict[ClientId, int]:
    """Return the partition ids 0, 1, …, in the order in which the nodes registered."""
    times = {node.node_id: datetime.fromisoformat(node.registered_at) for node in nodes}
    if len(set(times.values())) != len(nodes):
        raise FleetError("two nodes of the simulation registered in the same instant; start it again")
    order = sorted(times, key=times.__getitem__)
    return {str(partition): node for partition, node in enumerate(order)}


def _registered(node: NodeInfo) -> ClientId:
    if not node.name:
        return f"key-{hashlib.sha256(node.public_key or str(node.node_id).encode()).hexdigest()[:32]}"
    return node.name if node.owner_name in NOBODY else f"{node.owner_name}/{node.name}"


def _check_unique(ids: Sequence[ClientId]) -> None:
    if twice := [client for client, times in Counter(ids).items() if times > 1]:
        raise FleetError(
            f"two SuperNodes are registered as {twice[0]!r}; unregister one, or give it another name"
        )
    if bad := [client for client in ids if bad_id(client)]:
        raise FleetError(
            f"a SuperNode is registered as {printable(bad[0])}: {bad_id(bad[0])}; give it another name"
        )


class FlowerFleet:
    """Asks clients as the training asked them: with the same records, settings and round number.

    Clients that miss the deadline are left out. If too few answer, they are asked again; if they are still
    too few, a FleetError is raised. ``rejected`` says who was left out last, and why.
    """

    def __init__(
        self,
        grid: Grid,
        history: History,  # recorded by a Recorder
        *,
        patience: Patience | None = None,
        config: Mapping[str, Any] | None = None,  # replaces the settings that the training sent
        epochs_key: str = "local-epochs",  # where clients find their number of epochs
    ) -> None:
        self._grid, self._identities = grid, Identities(grid)
        self._notes = RunMetadata.of(history)
        self._model = self._notes.model(history)
        self._patience, self._epochs_key = patience or Patience(), epochs_key
        self._config = None if config is None else dict(config)
        self._sent = RecordedConfig(history, self._notes)
        self.rule: StrategyRule | None = None  # aggregates the answers of these clients
        self._metrics: dict[ClientId, tuple[str, MetricRecord]] = {}
        self._round = -1
        self._given_up: set[ClientId] = set()  # no longer waited for, but asked when they return
        self.rejected: tuple[Rejection, ...] = ()

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """Return the updates of those clients that trained from ``model`` and answered."""
        nodes = self._connected(clients)
        intake = ReplyCollector(
            self._model, model, {n: c for c, n in nodes.items()}, self._notes.examples_key
        )
        arrays = self._model.arrays(model, self._sent.absent(round))
        messages = [
            Message(self._content(arrays, client, round, epochs), node, MessageType.TRAIN)
            for client, node in nodes.items()
        ]
        replies = ask_nodes(self._grid, messages, self._patience, intake.judge)
        admitted = intake.admit(replies.usable, replies.failed)
        self._remember(round, admitted.replies, nodes)
        absent = (Rejection(c, "is not connected") for c in clients if c not in nodes)
        self.rejected = tuple(sorted((*admitted.rejected, *absent), key=lambda r: r.client))
        for left_out in self.rejected:
            log(WARNING, "fedcrab: round %d without %s: %s", round, left_out.client, left_out.reason)
        return admitted.updates

    def _content(self, arrays: ArrayRecord, client: ClientId, round: int, epochs: int | None) -> RecordDict:
        """Return what the training sent to this client in this round, with another model."""
        key = self._notes.config_key
        if self._config is None:
            records = self._sent.records(round, client)
        else:
            records = {key: {**self._config, ROUND: round + 1}}
        records[key] |= self.rule.settings() if self.rule is not None else {}
        records[key] |= {} if epochs is None else {self._epochs_key: epochs}
        configs = {name: ConfigRecord(settings) for name, settings in records.items()}
        return RecordDict({self._notes.arrays_key: arrays, **configs})

    def _remember(
        self, round: int, replies: Mapping[ClientId, Message], nodes: Mapping[ClientId, int]
    ) -> None:
        """Keep the metrics of clients for strategies that use them."""
        if round != self._round:
            self._round, self._metrics = round, {}
        for client, reply in replies.items():
            self._metrics[client] = next(iter(reply.content.metric_records.items()))
        if self.rule is not None:
            self.rule.hear(round, self._metrics, nodes)

    def _connected(self, clients: Sequence[ClientId]) -> dict[ClientId, int]:
        """Return the nodes of these clients after waiting once; raises FleetError if too few connect."""
        if len(set(clients)) != len(clients):
            raise ConfigError("a client is listed twice in one round")
        begun = time.monotonic()
        while True:
            here = self._identities.nodes()
            missing = {c for c in clients if c not in here}
            enough = len(clients) - len(missing) >= self._patience.enough(len(clients))
            if not missing - self._given_up and enough:
                break
            if time.monotonic() - begun >= self._longest_wait():
                self._give_up(missing, enough, len(clients))
                break
            time.sleep(self._patience.poll)
        self._given_up &= missing
        self._check_scheme()
        return {c: here[c] for c in sorted(clients) if c in here}

    def _longest_wait(self) -> float:
        """Return how many seconds clients may take to connect; a simulation starts all of them at once."""
        simulated = self._identities.scheme() == "partition"
        return min(self._patience.deadline, SIMULATION_STARTS) if simulated else self._patience.deadline

    def _give_up(self, missing: set[ClientId], enough: bool, asked: int) -> None:
        names = ", ".join(sorted(missing, key=natural)[:20])
        if self._notes.identity == self._identities.scheme() == "partition":
            raise FleetError(
                f"this simulation has {len(self._identities.nodes())} clients, and no client {names}; start "
                "it with as many as the training had: flwr run . --federation-config "
                '"num-supernodes=..." with the same --run-config'
            )
        if not enough:
            raise FleetError(
                f"{len(missing)} of {asked} clients are not connected ({names}); start their SuperNodes with "
                "their registered keys, then start the recovery again: it resumes where it stopped"
            )
        self._given_up |= missing
        log(WARNING, "fedcrab: continuing without %s, not connected", names)

    def _check_scheme(self) -> None:
        scheme = self._identities.scheme()
        if scheme != self._notes.identity:
            raise ConfigError(f"the history names clients by {self._notes.identity}, this grid by {scheme}")
