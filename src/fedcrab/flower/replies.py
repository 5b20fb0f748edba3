"""The replies of one round: checked one by one as they arrive, admitted together.

Nothing in a reply is trusted.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedcrab.admission import NOT_FINITE, examples_problem, no_updates
from fedcrab.flower.row_arrays import HeldReply
from fedcrab.flower.waiting import Reason, unusable
from fedcrab.recording.arrays import ArrayLayout, UpdateBuffers, listed
from fedcrab.types import ClientId, Rejection, Updates, Vector
from fedcrab.vectors import is_finite

Signature = tuple[frozenset[str], tuple[str, ...], tuple[str, ...], tuple[tuple[str, int], ...]]
MOST = sys.float_info.max


def update_of(content: RecordDict, model: ArrayLayout, start: Vector, out: Vector) -> Vector:
    """Return the local model minus its start model; raises ValueError if the reply has none."""
    return model.difference(arrays_of(content), start, out, partial=True)


def arrays_of(content: RecordDict) -> ArrayRecord:
    """Return the only array record; raises ValueError if there is not exactly one."""
    if len(content.array_records) != 1:
        raise ValueError(f"{len(content.array_records)} array records instead of one")
    return next(iter(content.array_records.values()))


def metrics_of(content: RecordDict) -> MetricRecord:
    """Return the only metric record; raises ValueError if there is not exactly one."""
    if len(content.metric_records) != 1:
        raise ValueError(f"{len(content.metric_records)} metric records instead of one")
    return next(iter(content.metric_records.values()))


def examples_of(content: RecordDict, key: str) -> object:
    """Return the number of examples that the client reports; raises ValueError if it reports none."""
    metrics = metrics_of(content)
    if key not in metrics:
        raise ValueError(f"the reply has no {key!r}")
    return metrics[key]


def loss_of(content: RecordDict, keys: tuple[str, ...]) -> float | None:
    """Return the reported loss, by the first of these names that the client uses."""
    metrics = metrics_of(content)
    value = next((metrics[key] for key in keys if key in metrics), None)
    return float(value) if isinstance(value, int | float) and abs(value) <= MOST else None


def odd_ones(replies: Mapping[ClientId, Message]) -> dict[ClientId, Reason]:
    """Return the clients whose record names differ from most: one would stop Flower's own strategies."""
    signatures = {client: _signature(reply.content) for client, reply in replies.items()}
    if len(set(signatures.values())) < 2:
        return {}
    counts = Counter(signatures[client] for client in sorted(signatures))
    usual = max(counts, key=counts.__getitem__)
    return {c: _oddity(signature, usual) for c, signature in signatures.items() if signature != usual}


def _oddity(found: Signature, usual: Signature) -> Reason:
    if found[0] != usual[0]:
        return f"the arrays are {listed(found[0])} instead of {listed(usual[0])}"
    return "its records have other names than those of the other clients"


def _signature(content: RecordDict) -> Signature:
    metrics = metrics_of(content)
    shapes = [(key, len(value) if isinstance(value, list) else -1) for key, value in sorted(metrics.items())]
    arrays = frozenset(name for record in content.array_records.values() for name in record)
    return arrays, tuple(content.array_records), tuple(content.metric_records), tuple(shapes)


SILENT = "did not answer in time"


@dataclass(frozen=True, slots=True)
class Admitted:
    """The replies that are used, and why the others are not."""

    updates: Updates
    replies: Mapping[ClientId, Message]  # in the order of the ids
    rejected: tuple[Rejection, ...]
    losses: tuple[tuple[float, float], ...]  # reported, each with its number of examples


@dataclass(slots=True)
class ReplyCollector:
    """Writes updates directly into one matrix, one row per client, in the order of the ids."""

    model: ArrayLayout
    start: Vector
    clients: Mapping[int, ClientId]  # those asked, by node
    examples_key: str
    rooms: UpdateBuffers = field(default_factory=UpdateBuffers)  # its own, unless the caller passes some
    hold: bool = False  # whether replies give up their bytes; then the caller calls :meth:`subtract_start`
    _rows: dict[ClientId, int] = field(init=False)
    _matrix: NDArray[np.float32] | None = field(init=False, default=None)  # allocated with the first reply
    _weights: NDArray[np.float64] = field(init=False)
    _held: dict[int, HeldReply] = field(init=False, default_factory=dict)  # by row
    _seen: dict[int, tuple[Message, Reason | None]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._rows = {client: row for row, client in enumerate(sorted(self.clients.values()))}
        self._weights = np.zeros(len(self._rows))

    def judge(self, node: int, reply: Message) -> Reason | None:
        """Return why this node's reply cannot be used, or None."""
        if id(reply) not in self._seen:
            self._seen[id(reply)] = reply, unusable(reply) or self._read(node, reply)
        return self._seen[id(reply)][1]

    def _read(self, node: int, reply: Message) -> Reason | None:
        row = self._rows[self.clients[node]]
        if self._matrix is None:
            self._matrix = self.rooms.take(len(self._rows), self.model.layout.size)
        try:
            finite = self._take(reply.content, row, self._matrix[row])
            examples = examples_of(reply.content, self.examples_key)
        except ValueError as error:
            return str(error)[:300]
        reason = examples_problem(examples) if finite else NOT_FINITE
        if reason is None and isinstance(examples, int | float):
            self._weights[row] = examples
        return reason

    def _take(self, content: RecordDict, place: int, row: Vector) -> bool:
        """Fill in the row of a reply; return whether its update is finite."""
        if not self.hold:
            return is_finite(update_of(content, self.model, self.start, row))
        self._held[place] = HeldReply(self.model, arrays_of(content), self.start, row)
        return self._held[place].is_finite(self.start, row)

    def subtract_start(self) -> None:
        """Turn held replies into updates, once nobody but the strategy's own results refers to them."""
        for place, held in self._held.items():
            if self._matrix is not None:
                held.subtract(self.start, self._matrix[place])
        self._held = {}

    def admit(
        self, replies: Mapping[int, Message], reasons: Mapping[int, Reason], keys: Collection[str] = ()
    ) -> Admitted:
        """Return usable and rejected replies; ``reasons`` says why some nodes have none."""
        left_out = {c: reasons.get(n, SILENT) for n, c in self.clients.items() if n not in replies}
        left_out |= {self.clients[n]: why for n, reply in replies.items() if (why := self.judge(n, reply))}
        good = {c: replies[n] for n, c in self.clients.items() if c not in left_out}
        left_out |= odd_ones(good)
        used = {c: good[c] for c in sorted(good) if c not in left_out}
        rejected = tuple(Rejection(c, left_out[c]) for c in sorted(left_out))
        updates = self._updates(list(used))
        weights = dict(zip(updates.clients, updates.weights.tolist(), strict=True))
        losses = [(loss_of(reply.content, tuple(keys)), weights[c]) for c, reply in used.items()]
        return Admitted(updates, used, rejected, tuple((loss, w) for loss, w in losses if loss is not None))

    def _updates(self, clients: list[ClientId]) -> Updates:
        """Return the rows of these clients, moved up to be adjacent, without a second matrix."""
        if not clients or self._matrix is None:
            return no_updates(self.model.layout.size)
        rows = [self._rows[client] for client in clients]
        for place, row in enumerate(rows):  # in order, so no row is overwritten before it has moved
            if place != row:
                self._matrix[place] = self._matrix[row]
                if row in self._held:
                    self._held[row].move(self._matrix[place])
        self._held = {place: self._held[row] for place, row in enumerate(rows) if row in self._held}
        weights, self._seen = self._weights[rows], {}
        return Updates(tuple(clients), self._matrix[: len(rows)], weights)
