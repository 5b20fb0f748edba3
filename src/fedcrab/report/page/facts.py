"""What a page knows of a history, as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from fedcrab import rollback
from fedcrab.caveats import SENTENCES, caveats_of_the_history, earlier_recoveries
from fedcrab.history import History
from fedcrab.report.page.arrays import Packed, joined, packed
from fedcrab.report.page.carried import Carried
from fedcrab.report.page.methods import methods_of
from fedcrab.report.page.points import Points, points_of
from fedcrab.types import natural

MOST_REJECTIONS = 20_000


def facts_of(history: History, clients: Carried) -> dict[str, Any]:
    """Everything that the page needs of the history itself."""
    contents, charter = history.contents, history.charter
    broken, gone = earlier_recoveries(history)
    return {
        "path": str(history.path),
        "head": contents.head,
        "closed": history.closed,
        "parameters": charter.layout.size,
        "aggregation": charter.aggregation,
        "simulated": bool(charter.notes),
        "selection": charter.to_table()["selection"],
        "bytes": history.bytes(),
        "initialLoss": charter.initial_loss if isfinite(charter.initial_loss) else None,
        "clients": list(clients.clients),
        "order": list(clients.order),
        "others": clients.others,
        "turnedAwayOthers": clients.turned_away,
        "rounds": len(history.rounds),
        "kept": list(history.kept),
        "models": [history.rounds[t].start for t in history.kept or (0,)] if history.rounds else [],
        "windows": [[w.first, w.last] for w in contents.windows],
        "rejections": _rejections(history, clients),
        "presets": {name: dict(settings) for name, settings in rollback.PRESETS.items()},
        "sentences": SENTENCES,
        "caveats": list(caveats_of_the_history(history)),
        "recoveredBefore": {"rounds": broken, "gone": sorted(gone, key=natural)},
        "methods": methods_of(history),
        **_geometry(history, points_of(history, clients), clients),
    }


def _geometry(history: History, points: Sequence[Points], clients: Carried) -> dict[str, Any]:
    kept = [points[t].width for t in history.kept]
    widths = {"all": max((p.width for p in points), default=0), "stored": max(kept, default=0)}
    return {"widths": widths, "arrays": {**_rounds(history, points), **_members(history, points, clients)}}


def _rounds(history: History, points: Sequence[Points]) -> dict[str, Packed]:
    """One number a round, and its coordinates."""
    return {
        "loss": packed("f64", [entry.loss for entry in history.rounds]),
        "divergence": packed("f64", [entry.divergence for entry in history.rounds]),
        "members": packed("i32", [len(p.members) for p in points]),
        "others": packed("i32", [p.others.count for p in points]),
        "othersExamples": packed("f64", [p.others.examples for p in points]),
        "othersSelected": packed("i32", [_others_selected(history, t, p) for t, p in enumerate(points)]),
        "chosen": packed("i32", [p.selected_others.count for p in points]),
        "chosenExamples": packed("f64", [p.selected_others.examples for p in points]),
        "references": packed("i32", [len(p.reference) for p in points]),
        "reference": joined("f64", [p.reference for p in points]),
        "triangles": joined("f64", [p.triangle for p in points]),
    }


def _others_selected(history: History, t: int, points: Points) -> int:
    """Also in rounds that are not kept."""
    selected = history.rounds[t].selected
    return int(selected.sum() - selected[list(points.members)].sum())


def _members(history: History, points: Sequence[Points], clients: Carried) -> dict[str, Packed]:
    """One number for each carried client of each round."""
    places, pairs = clients.places(), list(zip(history.rounds, points, strict=True))
    ids = [[places[entry.clients[place]] for place in p.members] for entry, p in pairs]

    def column(kind: str, name: str) -> Packed:
        return joined(kind, [getattr(entry, name)[np.array(p.members, np.intp)] for entry, p in pairs])

    return {
        "client": joined("i32", ids),
        "examples": column("f64", "examples"),
        "norm": column("f32", "norms"),
        "cosine": column("f32", "cosines"),
        "selected": column("u8", "selected"),
    }


def _rejections(history: History, clients: Carried) -> dict[str, Any]:
    """Who was turned away from which round, and why; each reason once."""
    places, reasons = clients.places(), dict[str, int]()
    rows: list[list[int]] = []
    others = 0
    for entry in history.rounds:
        for r in entry.rejected:
            if r.client in places and len(rows) < MOST_REJECTIONS:
                rows.append([entry.index, places[r.client], reasons.setdefault(r.reason, len(reasons))])
            else:
                others += 1
    return {"reasons": list(reasons), "rows": rows, "others": others}
