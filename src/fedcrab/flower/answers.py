"""What a client's reply says, nothing of it trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import isfinite

from flwr.app import Message, MetricRecord, RecordDict

from fedcrab.flower.arrays import Model
from fedcrab.types import ClientId, Vector

Signature = tuple[object, ...]


def update_of(content: RecordDict, model: Model, start: Vector, out: Vector) -> Vector:
    """The local model minus the model it started from; ValueError where there is none to be had."""
    if len(content.array_records) != 1:
        raise ValueError(f"{len(content.array_records)} array records in place of one")
    return model.difference(next(iter(content.array_records.values())), start, out)


def metrics_of(content: RecordDict) -> MetricRecord:
    """The one metric record; ValueError where there is not one."""
    if len(content.metric_records) != 1:
        raise ValueError(f"{len(content.metric_records)} metric records in place of one")
    return next(iter(content.metric_records.values()))


def examples_of(content: RecordDict, key: str) -> object:
    """The number of examples as the client gives it; ValueError where it gives none."""
    metrics = metrics_of(content)
    if key not in metrics:
        raise ValueError(f"the reply has no {key!r}")
    return metrics[key]


def loss_of(content: RecordDict, keys: tuple[str, ...]) -> float | None:
    """The loss that a client reports, under the first of these names that it uses."""
    metrics = metrics_of(content)
    value = next((metrics[key] for key in keys if key in metrics), None)
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def odd_ones(replies: Mapping[ClientId, Message]) -> set[ClientId]:
    """Whose records are not called as most others' are: one of these would stop Flower's own strategies."""
    signatures = {client: _signature(reply.content) for client, reply in replies.items()}
    if len(set(signatures.values())) < 2:
        return set()
    counts = Counter(signatures[client] for client in sorted(signatures))
    usual = max(counts, key=counts.__getitem__)
    return {client for client, signature in signatures.items() if signature != usual}


def _signature(content: RecordDict) -> Signature:
    metrics = metrics_of(content)
    shapes = [(key, len(value) if isinstance(value, list) else -1) for key, value in sorted(metrics.items())]
    return (tuple(content.array_records), tuple(content.metric_records), tuple(shapes))
