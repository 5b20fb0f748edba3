"""What each way to recover would ask of the honest clients, before any of it is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedcrab.errors import HistoryError
from fedcrab.history import History
from fedcrab.recover.federaser import check_history as federaser_needs
from fedcrab.recover.fedrecover import check_history as fedrecover_needs
from fedcrab.recover.fedrecover import scheduled

PAIRS = 2  # FedRecover's own default


def methods_of(history: History) -> list[dict[str, Any]]:
    """Each method: whether this history allows it, and the rounds in which honest participants are asked.

    Crab's rounds depend on the decision: the page has them from it, by preset.
    """
    everything = list(range(len(history.rounds)))
    exact = scheduled(len(everything), PAIRS, None, None, None)
    return [
        {"name": "crab-hardened", "preset": "hardened", "refused": None},
        {"name": "crab-paper", "preset": "paper", "refused": None},
        {
            "name": "federaser",
            "rounds": list(history.kept[1:]),
            "remark": "half of the local epochs each",
            "refused": _refused(history, federaser_needs),
        },
        {
            "name": "fedrecover",
            "rounds": [t for t in everything if exact.is_exact(t)],
            "remark": "at least: clients whose estimate is of no use are asked besides",
            "refused": _refused(history, fedrecover_needs),
        },
        {"name": "retrain", "rounds": everything, "refused": None},
    ]


def _refused(history: History, check: Callable[[History], None]) -> str | None:
    """Why a method cannot recover from this history, or None."""
    if not history.rounds:
        return "no round has been recorded"
    try:
        check(history)
    except HistoryError as error:
        return str(error).removeprefix(f"{history.path}: ").partition(";")[0]
    return None
