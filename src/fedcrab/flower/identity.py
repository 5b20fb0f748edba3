"""Who a node is: a name that is stable, and that no other node can claim.

- A node that the operator registered with a name: that name. Only the operator gives names, and every request
  of the node is signed with the key that it was registered with.
- Any other node of a deployment: ``key-`` and the hash of its public key, with which its requests are signed.
- In a simulation: the partition id; the engine hands partitions out in the order of registration.

A node that was never registered makes a new key at each start: its id is then good for one start only.
Nothing that a node says of itself is taken for an id.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from logging import WARNING

from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore import log

from fedcrab.admission import printable
from fedcrab.errors import FleetError
from fedcrab.types import ClientId

FOREVER = 1e299  # a heartbeat that only the simulation engine sets; a SuperNode cannot ask for it
NOBODY = ("", "none")  # the owner where there are no accounts


class Identities:
    """Which client is which node, as the SuperLink tells it."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._warned: set[ClientId] = set()

    def scheme(self) -> str:
        """How ids are made here: ``registered`` in a deployment, ``partition`` in a simulation."""
        return _scheme(list(self._grid.get_nodes()))

    def nodes(self) -> dict[ClientId, int]:
        """The connected clients, each with its node."""
        found = list(self._grid.get_nodes())
        if _scheme(found) == "partition":
            return _partitions(found)
        ids = [_registered(node) for node in found]
        self._warn(client for client, node in zip(ids, found, strict=True) if not node.name)
        _check_unique(ids)
        return {client: node.node_id for client, node in zip(ids, found, strict=True)}

    def clients(self) -> dict[int, ClientId]:
        """The connected nodes, each with its client."""
        return {node: client for client, node in self.nodes().items()}

    def _warn(self, nameless: Iterable[ClientId]) -> None:
        if new := sorted(set(nameless) - self._warned):
            self._warned.update(new)
            log(
                WARNING,
                "fedcrab: no registered name for %s. Without SuperNode authentication a node gets a new key, "
                "and so a new id, at each start: its rounds cannot be told from a stranger's, and recovery "
                "after a restart will not find it. Register keys with `flwr supernode register KEY --name "
                "NAME` and start the SuperLink with --enable-supernode-auth.",
                ", ".join(new[:20]),
            )


def _scheme(nodes: Sequence[NodeInfo]) -> str:
    return "partition" if nodes and all(n.heartbeat_interval > FOREVER for n in nodes) else "registered"


def _partitions(nodes: Sequence[NodeInfo]) -> dict[ClientId, int]:
    """Partition ids: 0, 1 and so on, as the nodes were registered."""
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
            f"two SuperNodes are registered as {twice[0]!r}; unregister one, or give it a name of its own"
        )
    if bad := [client for client in ids if printable(client) != client]:
        raise FleetError(
            f"a SuperNode is registered as {printable(bad[0])}; register it under a plainer name"
        )
