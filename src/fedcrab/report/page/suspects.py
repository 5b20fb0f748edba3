"""Whom the detector suspects, from the ledger alone, as a page shows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedcrab.detect import Detection, ledger
from fedcrab.history import History
from fedcrab.types import ClientId

MOST_JUDGED = 200  # clients: the detector compares every pair of them, and a page should not take minutes


def judged(history: History) -> Detection | None:
    """The detector's judgement; None where there is nothing to judge, or too much to do it in passing."""
    return ledger(history) if 2 <= len(history.clients) <= MOST_JUDGED else None


def suspects_of(detection: Detection | None) -> list[ClientId]:
    """Those most worth a place on the page: the suspects, the clearest first."""
    if detection is None:
        return []
    return sorted(detection.suspects, key=lambda client: -detection.scores[client])


def detection_facts(detection: Detection | None, inside: Collection[ClientId]) -> dict[str, Any] | None:
    """The scores of the clients on the page, and the judgement in a sentence."""
    if detection is None:
        return None
    table, there = detection.to_table(), set(inside)
    rows: list[Mapping[str, Any]] = [row for row in table["clients"] if row["client"] in there]
    return {
        "detector": table["detector"],
        "clients": rows,
        "notes": table["notes"],
        "sentence": _sentence(detection),
    }


def _sentence(detection: Detection) -> str:
    if detection.attack:
        return (
            f"A sign of attack over {detection.rounds} rounds, {detection.confidence:.1%} sure. "
            "A suspicion, not a proof: look at what these clients did before marking them."
        )
    return (
        f"No sign of attack over {detection.rounds} rounds: the clearest has {detection.strength:.2f} of "
        "what would be taken for one. An attack that keeps to what honest clients do is not seen this way."
    )
