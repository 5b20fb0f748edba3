"""Output for people: tables, curves, the incident page. Calling the package writes the page."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from fedcrab.extras import can_be_called
from fedcrab.history import History
from fedcrab.recover.run import Recovery
from fedcrab.types import ClientId


def report(
    source: History | Recovery | str | os.PathLike[str],
    out: str | os.PathLike[str] = "incident.html",
    *,
    malicious: Collection[ClientId] = (),
    since: Mapping[ClientId, int] | None = None,
    recovered: str | os.PathLike[str] | None = None,
    title: str = "",
    owner: str = "",
    status: str = "",
) -> Path:
    """Write the incident page of a history or a recovery, one HTML file; returns its path.

    ``source`` is a history, what ``fedcrab.recover`` gave, or the path of either. ``malicious`` are marked
    when the page opens, each from its round ``since`` on; ``recovered`` is the folder of recoveries to show.
    """
    from fedcrab.report.page import Incident, find, page_data, write_page

    if isinstance(source, Recovery):
        source, recovered = source.plan.history, recovered or source.path
    place = None if recovered is None else Path(recovered)
    history, found = (source, place) if isinstance(source, History) else find(Path(source), place)
    marked = [malicious] if isinstance(malicious, str) else malicious
    facts = page_data(history, marked, found, since=since, incident=Incident(title, owner, status))
    write_page(Path(out), facts)
    return Path(out)


can_be_called(__name__, report)  # fedcrab.report(history)
