"""Tables, curves and the incident page. ``fedcrab.report(...)`` writes the page."""

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
    """Write the incident page of a history or a recovery to one HTML file, and return its path.

    ``source`` is a history, the result of ``fedcrab.recover``, or the path of either. The clients in
    ``malicious`` are marked when the page opens, each from its round in ``since``. ``recovered`` is the
    folder of recoveries to show. ``title``, ``owner`` and ``status`` are shown at the top of the page.
    Raises ``ConfigError`` if a marked client is not in the history, and ``HistoryError`` if there is no
    history or the page cannot be written.
    """
    from fedcrab.report.page import Incident, find, page_data, write_page

    if isinstance(source, Recovery):
        source, recovered = source.plan.history, recovered or source.path
    folder = None if recovered is None else Path(recovered)
    history, folder = (source, folder) if isinstance(source, History) else find(Path(source), folder)
    marked = [malicious] if isinstance(malicious, str) else malicious
    facts = page_data(history, marked, folder, since=since, incident=Incident(title, owner, status))
    write_page(Path(out), facts)
    return Path(out)


can_be_called(__name__, report)  # fedcrab.report(history)
