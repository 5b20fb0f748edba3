"""A grid around a grid that waits as it is told to: deadline, quorum, attempts, and no endless wait."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from flwr.app import Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedcrab.errors import FleetError
from fedcrab.flower.exchange import Judge, Patience, Replies, ask


class PatientGrid(Grid):
    """Training messages need a quorum of usable answers; others wait until the deadline at most."""

    def __init__(self, grid: Grid, patience: Patience, judge: Judge) -> None:
        self._grid, self._patience, self._judge = grid, patience, judge
        self._waiting_since: float | None = None
        self.replies = Replies()  # of the last training messages

    def set_run(self, run: Run) -> None:
        """As the grid inside."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """As the grid inside."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """As the grid inside."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The connected nodes; a strategy that waits for more of them is stopped in the end."""
        found = list(self._grid.get_node_ids())
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since > self._patience.deadline:
            raise FleetError(
                f"{len(found)} clients are connected, and the strategy has waited "
                f"{self._patience.deadline:g} s for more; start SuperNodes, or ask for fewer of them"
            )
        return found

    def get_nodes(self) -> Iterable[NodeInfo]:
        """As the grid inside."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the grid inside."""
        self._waiting_since = None
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As the grid inside."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """One usable answer a node at most; who gave none is told in ``replies``."""
        messages = list(messages)
        self._waiting_since = None
        deadline = min(self._patience.deadline, timeout or self._patience.deadline)
        patience = replace(self._patience, deadline=deadline)
        if all(m.metadata.message_type == MessageType.TRAIN for m in messages):
            self.replies = ask(self._grid, messages, patience, self._judge)
            return list(self.replies.usable.values())
        return _without_quorum(self._grid, messages, patience)


def _without_quorum(grid: Grid, messages: list[Message], patience: Patience) -> list[Message]:
    """What comes by the deadline, be it nothing."""
    try:
        replies = ask(grid, messages, replace(patience, attempts=1, quorum=1e-9), lambda _node, _reply: None)
    except FleetError:
        return []
    return list(replies.usable.values())
