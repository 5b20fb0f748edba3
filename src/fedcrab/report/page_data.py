"""The page's data from a history, for JSON: arrays in base64, methods with their cost, and suspects."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.detect import Detection, ledger
from fedcrab.detect.saved_audit import read_audit
from fedcrab.history import History
from fedcrab.recover.cost import contact_rounds, refused
from fedcrab.recover.fedrecover import PAIRS
from fedcrab.recover.methods import METHODS, default_method
from fedcrab.recover.pacing import FEWEST
from fedcrab.recover.schedule import (
    FEWEST_OF_FEW,
    LEAST_TAPER,
    LONGEST,
    MOST_TAPER,
    REPLAYED_PER_TAPER,
    SETTLED,
    SHORT,
)
from fedcrab.report.page_clients import PageClients, PageGram, by_influence, points_of
from fedcrab.rollback.decision import PRESETS
from fedcrab.rollback.onset import onset
from fedcrab.rollback.warnings import SENTENCES, caveats_of_the_history, earlier_recoveries
from fedcrab.types import ClientId, natural

MOST_MODELS = 100  # kept models that are evaluated, evenly spaced
Point = list[float | None]  # the round that starts from the model, accuracy, attack success


def accuracies(history: History) -> list[Point]:
    """Return accuracy and attack success of kept models and the last one; needs the extra ``simulate``."""
    from fedcrab.experiment.run import measured
    from fedcrab.experiment.setup import setup_of

    setup = setup_of(history, 0)
    try:
        models = [(t, history.model(t)) for t in evenly_spaced(history.kept)]
        last = (len(history.rounds), history.final_model())
        return [[t, *measured(setup, model).values()] for t, model in [*models, last]]
    finally:
        setup.close()


def evenly_spaced(rounds: Sequence[int]) -> list[int]:
    """Return at most MOST_MODELS of these rounds, including the first and the last."""
    if len(rounds) <= MOST_MODELS:
        return list(rounds)
    step = (len(rounds) - 1) / (MOST_MODELS - 1)
    return [rounds[round(place * step)] for place in range(MOST_MODELS)]


KINDS = {"f64": "<f8", "f32": "<f4", "i32": "<i4", "u8": "|u1"}
Packed = dict[str, str]


def packed(kind: str, values: NDArray[Any] | Sequence[float]) -> Packed:
    """Return an array in base64, for the page to unpack; NaN and infinity are kept."""
    numbers = np.ascontiguousarray(values, KINDS[kind])
    return {"kind": kind, "base64": base64.b64encode(numbers.tobytes()).decode("ascii")}


def joined(kind: str, pieces: Iterable[NDArray[Any] | Sequence[float]]) -> Packed:
    """Return arrays of different lengths, concatenated; the caller stores the lengths."""
    parts = [np.asarray(piece, KINDS[kind]) for piece in pieces]
    return packed(kind, np.concatenate(parts) if parts else [])


def unpacked(array: Packed) -> NDArray[Any]:
    """Return the array that :func:`packed` packed."""
    return np.frombuffer(base64.b64decode(array["base64"]), KINDS[array["kind"]])


def methods_of(history: History) -> list[dict[str, Any]]:
    """Return per method whether this history allows it, and which rounds ask clients, if known beforehand.

    The rounds of a method that rolls back depend on the decision, so the page computes them, per preset.
    """
    return [_method(history, name) for name in reversed([*METHODS])]


def _method(history: History, name: str) -> dict[str, Any]:
    method = METHODS[name]
    data: dict[str, Any] = {"name": name, "title": method.title, "remark": method.remark}
    data |= {"refused": refused(history, name), "default": name == default_method(history)[0]}
    if method.by_plan:
        settle = method.settings["settle"] if method.settings["everyone"] else 0
        return {**data, "preset": method.preset, "settle": settle}
    if method.rolls_back and method.contacts is not None:
        return {**data, "preset": method.preset, "schedule": {"pairs": PAIRS}}
    if method.rolls_back:
        pace: dict[str, Any] = {"asked": FEWEST, "few": FEWEST_OF_FEW, "longest": LONGEST}
        pace |= {"taper": [REPLAYED_PER_TAPER, LEAST_TAPER, MOST_TAPER], "settled": SETTLED}
        pace |= {"short": SHORT}
        return {**data, "preset": method.preset, "pace": pace}
    return {**data, "rounds": contact_rounds(method, history), "each": method.most}


MOST_REJECTIONS = 20_000


def history_data(history: History, clients: PageClients) -> dict[str, Any]:
    """Return the page's data about the history itself."""
    contents, charter = history.contents, history.charter
    broken, gone = earlier_recoveries(history)
    return {
        "path": history.where,
        "absolutePath": str(history.path.absolute()),  # a Flower server app runs in another folder
        "head": contents.head,
        "closed": history.closed,
        "parameters": charter.layout.size,
        "aggregation": charter.aggregation,
        "source": history.charter.engine,
        "selection": charter.to_table()["selection"],
        "bytes": history.bytes(),
        "initialLoss": charter.initial_loss if isfinite(charter.initial_loss) else None,
        "clients": list(clients.clients),
        "order": list(clients.order),
        "others": clients.others,
        "together": list(clients.together),
        "turnedAwayOthers": clients.turned_away,
        "rounds": len(history.rounds),
        "kept": list(history.kept),
        "models": [history.rounds[t].start for t in history.kept or (0,)] if history.rounds else [],
        "windows": [[w.first, w.last] for w in contents.windows],
        "rejections": _rejections(history, clients),
        "presets": {name: dict(settings) for name, settings in PRESETS.items()},
        "sentences": SENTENCES,
        "caveats": list(caveats_of_the_history(history)),
        "recoveredBefore": {"rounds": broken, "gone": sorted(gone, key=natural)},
        "methods": methods_of(history),
        **_geometry(history, points_of(history, clients), clients),
    }


def _geometry(history: History, points: Sequence[PageGram], clients: PageClients) -> dict[str, Any]:
    kept = [points[t].width for t in history.kept]
    widths = {"all": max((p.width for p in points), default=0), "stored": max(kept, default=0)}
    return {
        "widths": widths,
        "arrays": {**_rounds(history, points, clients), **_members(history, points, clients)},
    }


def _rounds(history: History, points: Sequence[PageGram], clients: PageClients) -> dict[str, Packed]:
    """Return one number per round for each name, and the coordinates."""
    return {
        "began": packed("f64", [_seconds(entry.began) for entry in history.rounds]),
        "ended": packed("f64", [_seconds(entry.ended) for entry in history.rounds]),
        "loss": packed("f64", [entry.loss for entry in history.rounds]),
        "divergence": packed("f64", [entry.divergence for entry in history.rounds]),
        "members": packed("i32", [len(p.members) for p in points]),
        "others": packed("i32", [p.others.count for p in points]),
        "othersExamples": packed("f64", [p.others.examples for p in points]),
        "othersSelected": packed("i32", _others_selected(history, clients)),
        "chosen": packed("i32", [p.selected_others.count for p in points]),
        "chosenExamples": packed("f64", [p.selected_others.examples for p in points]),
        "marked": packed("i32", [p.marked.count for p in points]),
        "markedExamples": packed("f64", [p.marked.examples for p in points]),
        "markedChosen": packed("i32", [p.selected_marked.count for p in points]),
        "markedChosenExamples": packed("f64", [p.selected_marked.examples for p in points]),
        "references": packed("i32", [len(p.reference) for p in points]),
        "reference": joined("f64", [p.reference for p in points]),
        "triangles": joined("f64", [p.triangle for p in points]),
    }


def _seconds(when: datetime | None) -> float:
    """Return seconds since 1970 (UTC); NaN if the ledger has no time."""
    return float("nan") if when is None else when.timestamp()


def _others_selected(history: History, clients: PageClients) -> list[int]:
    """Return the number of selected clients per round that are neither on the page nor marked."""
    known = {*clients.clients, *clients.together}
    rows = [zip(entry.clients, entry.selected.tolist(), strict=True) for entry in history.rounds]
    return [sum(selected and client not in known for client, selected in row) for row in rows]


def _members(history: History, points: Sequence[PageGram], clients: PageClients) -> dict[str, Packed]:
    """Return one number per round and client on the page, for each name."""
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


def _rejections(history: History, clients: PageClients) -> dict[str, Any]:
    """Return which clients were rejected from which round, and why; each reason once."""
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


MOST_JUDGED = 200  # clients; with more, comparing every pair would take too long for a page


def run_detector(history: History) -> Detection | None:
    """Return the saved result of ``detect`` or ``audit``; without one, run the ledger detector.

    None if there are fewer than two clients, or too many to run it for a page.
    """
    audit = read_audit(history.path, history.contents.head)
    saved = Detection.from_table(audit["answer"]) if audit and audit.get("answer") else None
    if saved is not None and {*saved.scores} == {*history.clients}:
        return saved
    return ledger(history) if 2 <= len(history.clients) <= MOST_JUDGED else None


def suspects_of(detection: Detection | None) -> list[ClientId]:
    """Return the suspects, largest score first."""
    if detection is None:
        return []
    return sorted(detection.suspects, key=lambda client: -detection.scores[client])


def strongest_first(history: History, detection: Detection | None, clients: PageClients) -> list[int]:
    """Return the indices of the page's clients: suspects first, then by score, or else by influence."""
    places = clients.places()
    if detection is None:
        ranked = [places[client] for client in by_influence(history) if client in places]
        return [*ranked, *(place for place in clients.order if place not in set(ranked))]

    def rank(place: int) -> tuple[bool, float]:
        client = clients.clients[place]
        return client not in detection.suspicions, -detection.scores.get(client, -1.0)

    return sorted(clients.order, key=rank)


def detection_facts(
    history: History, detection: Detection | None, clients: Collection[ClientId]
) -> dict[str, Any] | None:
    """Return the scores of the page's clients, the result in words, and when the suspects began."""
    if detection is None:
        return None
    table, shown = detection.to_table(), set(clients)
    rows: list[Mapping[str, Any]] = [row for row in table["clients"] if row["client"] in shown]
    return {
        "detector": table["detector"],
        "confidence": table["confidence"],
        "strength": table["strength"],
        "clients": rows,
        "notes": table["notes"],
        "sentence": _sentence(detection),
        "onset": onset(history, detection.suspects).to_table() if detection.attack else None,
    }


def _sentence(detection: Detection) -> str:
    if detection.attack:
        return (
            f"Signs of an attack in {detection.rounds} rounds, confidence {detection.confidence:.1%}. "
            "This is not a proof: look at what these clients did before you mark them."
        )
    return (
        f"No sign of an attack in {detection.rounds} rounds. Strongest signal: {detection.strength:.0%} of "
        "the alarm threshold. An attacker who imitates honest clients is not visible this way."
    )
