"""From a directory to a page: gather the facts, put them into the frame, write one file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedcrab import __version__
from fedcrab.errors import ConfigError, HistoryError
from fedcrab.history import History
from fedcrab.history.disk import explained, write_named
from fedcrab.history.seal import LEDGER
from fedcrab.report.page.accuracy import accuracies
from fedcrab.report.page.carried import carried
from fedcrab.report.page.facts import facts_of
from fedcrab.report.page.frame import framed
from fedcrab.report.page.recoveries import recoveries_of, summaries_in
from fedcrab.report.page.suspects import detection_facts, judged, suspects_of
from fedcrab.types import ClientId


def find(directory: Path, recovered: Path | None = None) -> tuple[History, Path | None]:
    """The history to report on, and where its recoveries are: ``directory`` may be either."""
    if (directory / LEDGER).exists() or not (found := summaries_in(directory)):
        return History.open(directory), recovered
    paths = {summary["history"] for summary in found.values()}
    if len(paths) > 1:
        raise HistoryError(f"{directory}: recoveries of different histories ({', '.join(sorted(paths))})")
    return History.open(paths.pop()), recovered or directory


def page_facts(
    history: History,
    malicious: Collection[ClientId] = (),
    recovered: Path | None = None,
    *,
    accuracy: bool = False,
) -> dict[str, Any]:
    """Everything that the page says, as plain values; ``accuracy`` has the kept models judged too."""
    recoveries = recoveries_of(recovered, history.contents.head) if recovered else None
    marked = list(malicious) or (recoveries["malicious"] if recoveries else [])
    detection = judged(history)
    clients = carried(history, [*marked, *suspects_of(detection)])
    _check(history, malicious, clients.clients)
    return {
        "version": __version__,
        "written": datetime.now(UTC).isoformat(timespec="minutes"),
        "marked": [client for client in marked if client in set(clients.clients)],
        "recoveries": recoveries,
        "detection": detection_facts(detection, clients.clients),
        "accuracy": accuracies(history) if accuracy else [],
        **facts_of(history, clients),
    }


def _check(history: History, malicious: Collection[ClientId], known: Sequence[ClientId]) -> None:
    if unknown := set(malicious) - set(known):
        raise ConfigError(f"{history.path}: no client {', '.join(sorted(unknown))} in this history")


def write_page(path: Path, facts: dict[str, Any]) -> int:
    """One file, whole or absent; gives its size in bytes."""
    page = framed(facts).encode()
    with explained(f"{path}: the page is not written"):
        write_named(path, [page])
    return len(page)
