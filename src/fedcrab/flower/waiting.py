"""Asks nodes and waits for their answers, with a deadline, a quorum and a number of attempts.

An answer belongs to the node whose message it replies to; what it says about itself is not used (an error
has the SuperLink's id). Each node counts once, by its first usable answer, however often it was asked.

:class:`PatientGrid` is a grid around a grid that applies these limits, so that no strategy waits for ever.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING

from flwr.app import Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore import log
from flwr.supercore.run import Run

from fedcrab.errors import FleetError
from fedcrab.recording.patience import Patience as Patience

SHORTEST, WAIT = 0.05, 0.02  # seconds between two polls, and as a share of the time waited so far
Reason = str
Judge = Callable[[int, Message], Reason | None]  # why a node's answer cannot be used, or None


@dataclass(slots=True)
class Replies:
    """The answers, by node."""

    usable: dict[int, Message] = field(default_factory=dict)
    failed: dict[int, Reason] = field(default_factory=dict)  # nodes without a usable answer, and why
    sent: dict[str, int] = field(default_factory=dict)  # the node of every message sent


def ask_nodes(grid: Grid, messages: Iterable[Message], patience: Patience, judge: Judge) -> Replies:
    """Return the answers; asks again if too few are usable, and raises FleetError if they stay too few."""
    wanted = {m.metadata.dst_node_id: m for m in messages}
    if not wanted:
        return Replies()
    replies, waiting = Replies(), dict[str, int]()
    for attempt in range(patience.attempts):
        open_nodes = [node for node in wanted if node not in replies.usable]
        waiting |= _send(grid, [wanted[node] for node in open_nodes], patience, replies, again=attempt > 0)
        _collect(grid, waiting, patience, judge, replies)
        if len(replies.usable) >= patience.enough(len(wanted)):
            return replies
        log(WARNING, "fedcrab: attempt %d: %s", attempt + 1, _summary(wanted, replies))
        if attempt + 1 < patience.attempts:
            time.sleep(patience.pause * 2**attempt)
    raise FleetError(
        f"{_summary(wanted, replies)}, in {patience.attempts} attempts of {patience.deadline:g} s each; "
        f"a quorum of {patience.enough(len(wanted))} is needed"
    )


def _send(
    grid: Grid, messages: Sequence[Message], patience: Patience, replies: Replies, *, again: bool
) -> dict[str, int]:
    """Push messages; return the node of each message id that was accepted."""
    if again:
        messages = [_ask_again(m) for m in messages]
    for message in messages:
        message.metadata.ttl = min(message.metadata.ttl, patience.longest)  # no answer is read after that
    accepted = set(grid.push_messages(messages))
    sent = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
    for name, node in sent.items():
        replies.failed[node] = "did not answer in time" if name in accepted else "could not be reached"
    replies.sent |= sent
    return {name: node for name, node in sent.items() if name in accepted}


def _ask_again(message: Message) -> Message:
    old = message.metadata
    return Message(message.content, old.dst_node_id, old.message_type, group_id=old.group_id)


def _collect(grid: Grid, waiting: dict[str, int], patience: Patience, judge: Judge, replies: Replies) -> None:
    """Collect answers until every node has a usable one, none is left, or the time is up."""
    start = time.monotonic()
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None and node not in replies.usable:
                _take(node, reply, judge, replies)
        for name in [name for name, node in waiting.items() if node in replies.usable]:
            del waiting[name]
        waited = time.monotonic() - start
        if not waiting or waited >= patience.deadline:
            return
        time.sleep(min(patience.poll, max(SHORTEST, WAIT * waited)))


def _take(node: int, reply: Message, judge: Judge, replies: Replies) -> None:
    reason = unusable(reply) or judge(node, reply)
    if reason:
        replies.failed[node] = reason
    else:
        replies.usable[node] = reply
        replies.failed.pop(node, None)


def unusable(reply: Message) -> Reason | None:
    """Return why a reply has no content, or None."""
    if reply.has_error():
        return f"failed: error {reply.error.code}: {last_line(reply.error.reason or '') or 'no reason given'}"
    return None if reply.has_content() else "sent an empty answer"


ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
WRAPPED = re.compile(r"<class '(?:[^']*\.)?(?P<kind>[^'.]*)'>:<'(?P<text>.*)'>", re.DOTALL)  # Flower's form


def last_line(text: str) -> str:
    """Return the last line of a client's error, without escape sequences."""
    plain, kind = ESCAPE.sub("", text).strip(), ""
    if found := WRAPPED.fullmatch(plain):
        plain, kind = found["text"], found["kind"]
    shown = ("".join(c if c.isprintable() else " " for c in line) for line in plain.splitlines())
    lines = [" ".join(line.split()) for line in shown if line.strip()]
    last = lines[-1] if lines else ""
    return (f"{kind}: {last}" if kind and len(lines) < 2 else last)[:300]


def _summary(wanted: Mapping[int, Message], replies: Replies) -> str:
    reasons = sorted({" ".join(reason.split())[:120] for reason in replies.failed.values()})
    why = f" ({'; '.join(reasons[:3])})" if reasons else ""
    return f"{len(replies.usable)} of {len(wanted)} clients gave a usable answer{why}"


class PatientGrid(Grid):
    """Waits for a quorum of usable training answers; for other messages, until the deadline at most."""

    def __init__(self, grid: Grid, patience: Patience, judge: Judge) -> None:
        self._grid, self._patience, self._judge = grid, patience, judge
        self._waiting_since: float | None = None
        self.replies = Replies()  # to the last training messages
        self._given: list[Message] = []  # those passed to the strategy's loop

    def set_run(self, run: Run) -> None:
        """Call the inner grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """Call the inner grid."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Call the inner grid."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the connected nodes; raises FleetError if a strategy waits too long for more."""
        found = list(self._grid.get_node_ids())
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since > self._patience.deadline:
            raise FleetError(
                f"{len(found)} clients are connected, and the strategy has waited "
                f"{self._patience.deadline:g} s for more; start SuperNodes, or configure fewer"
            )
        return found

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Call the inner grid."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Call the inner grid."""
        self._waiting_since = None
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Call the inner grid."""
        return self._grid.pull_messages(message_ids)

    def let_go(self) -> None:
        """Empty the list of the last training answers.

        Flower's loop holds it until the next answers have arrived, and so holds the updates of two rounds.
        Do not call this in a strategy's own loop, which may still need the list.
        """
        self._given.clear()
        self.replies = Replies()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return at most one usable answer per node; ``replies`` says which nodes have none."""
        messages = list(messages)
        self._waiting_since = None
        deadline = min(self._patience.deadline, timeout or self._patience.deadline)
        patience = replace(self._patience, deadline=deadline)
        if all(m.metadata.message_type == MessageType.TRAIN for m in messages):
            self.replies = Replies()
            self.replies = ask_nodes(self._grid, messages, patience, self._judge)
            self._given = list(self.replies.usable.values())
            return self._given
        return _without_quorum(self._grid, messages, patience)


def _without_quorum(grid: Grid, messages: list[Message], patience: Patience) -> list[Message]:
    """Return the answers that arrive before the deadline, possibly none."""
    try:
        replies = ask_nodes(
            grid, messages, replace(patience, attempts=1, quorum=1e-9), lambda _node, _reply: None
        )
    except FleetError:
        return []
    return list(replies.usable.values())
