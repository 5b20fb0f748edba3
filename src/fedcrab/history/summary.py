"""A history in a few numbers: for people, and as plain values for JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import isfinite
from typing import Any

from fedcrab.history.store import History
from fedcrab.types import ClientId, natural


@dataclass(frozen=True, slots=True)
class ClientSummary:
    """One client over all rounds."""

    client: ClientId
    rounds: int
    selected: int
    rejected: int
    mean_norm: float
    mean_cosine: float


def summarise_clients(history: History) -> list[ClientSummary]:
    """Every client that took part or was turned away, in the order people count."""
    rounds, selected, rejected = Counter[str](), Counter[str](), Counter[str]()
    norms, cosines = Counter[str](), Counter[str]()
    for entry in history.rounds:
        rejected.update(r.client for r in entry.rejected)
        for client, norm, cosine, chosen in zip(
            entry.clients, entry.norms.tolist(), entry.cosines.tolist(), entry.selected.tolist(), strict=True
        ):
            rounds[client] += 1
            selected[client] += chosen
            norms[client] += norm
            cosines[client] += cosine
    return [
        ClientSummary(c, rounds[c], selected[c], rejected[c], *_means(norms[c], cosines[c], rounds[c]))
        for c in sorted({*rounds, *rejected}, key=natural)
    ]


def _means(norms: float, cosines: float, rounds: int) -> tuple[float, float]:
    return (norms / rounds, cosines / rounds) if rounds else (0.0, 0.0)


def to_table(history: History) -> dict[str, Any]:
    """A history as plain values."""
    contents, charter = history.contents, history.charter
    return {
        "path": str(history.path),
        "closed": history.closed,
        "parameters": charter.layout.size,
        "aggregation": charter.aggregation,
        "selection": charter.to_table()["selection"],
        "head": contents.head,
        "clients": list(history.clients),
        "client_summaries": [
            {name: getattr(c, name) for name in ClientSummary.__slots__} for c in summarise_clients(history)
        ],
        "rounds": [
            {
                "index": entry.index,
                "window": contents.window_of(entry.index),
                "state": contents.state(entry.index),
                "loss": _plain(entry.loss),
                "divergence": _plain(entry.divergence),
                "participants": list(entry.clients),
                "selected": [c for c, s in zip(entry.clients, entry.selected, strict=True) if s],
                "rejected": [{"client": r.client, "reason": r.reason} for r in entry.rejected],
            }
            for entry in history.rounds
        ],
        "bytes": history.bytes(),
    }


def _plain(value: float) -> float | None:
    """JSON has no word for a number that is not finite."""
    return value if isfinite(value) else None
