"""The incident page: collect its data, fill in the template, and write one HTML file.

The page loads nothing from the network. Client ids are escaped, so that none can end the data.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedcrab import __version__
from fedcrab.errors import ConfigError
from fedcrab.files import file_errors, write_named
from fedcrab.history import History
from fedcrab.history.chain import LEDGER
from fedcrab.history.signature import check_public
from fedcrab.recover.folder import history_of, recoveries_in
from fedcrab.report.page_clients import clients_of_page
from fedcrab.report.page_data import (
    accuracies,
    detection_facts,
    history_data,
    run_detector,
    strongest_first,
    suspects_of,
)
from fedcrab.report.page_recoveries import recoveries_of
from fedcrab.report.trigger import trigger_facts
from fedcrab.rollback.malicious import join_quoted
from fedcrab.types import ClientId

ASSETS = files("fedcrab.report") / "assets"
ARITHMETIC = ("arithmetic.js", "plan.js", "unpack.js")  # need no page
SCRIPTS = (
    *ARITHMETIC,
    *("dom.js", "times.js", "chart.js", "state.js", "fragment.js", "headline.js", "decision.js"),
    *("timeline.js", "suspects.js", "views.js", "map.js", "sensitivity.js", "cost.js", "recovered.js"),
    *("certificate.js", "trigger.js", "commands.js", "engine_commands.js", "print.js", "main.js"),
)


def asset(name: str) -> str:
    """Return the text of a file in ``assets``."""
    return (ASSETS / name).read_text(encoding="utf-8")


def script() -> str:
    """Return all scripts as one, in a scope of its own."""
    return '(() => {\n"use strict";\n' + "\n".join(asset(name) for name in SCRIPTS) + "})();\n"


def embedded(facts: Any) -> str:
    """Return JSON for a script element; it can neither end the element nor start a comment."""
    text = json.dumps(facts, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def render_page(facts: Any) -> str:
    """Return the HTML of the page."""
    style, code = asset("style.css"), script()
    policy = (
        f"default-src 'none'; script-src '{_hash(code)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "style": style, "script": code, "facts": embedded(facts)}
    page = asset("template.html")
    for name, text in parts.items():
        before, after = page.split(f"@@{name}@@")
        page = before + text + after
    return page


def _hash(text: str) -> str:
    """Return the hash by which the Content-Security-Policy allows this one script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


LONGEST_LABEL = 200


@dataclass(frozen=True, slots=True)
class Incident:
    """The title, owner and status of the incident, as the operator words them."""

    title: str = ""
    owner: str = ""
    status: str = ""

    def __post_init__(self) -> None:
        for name, text in asdict(self).items():
            if len(text) > LONGEST_LABEL or not text.isprintable():
                raise ConfigError(
                    f"{name} must be one line of at most {LONGEST_LABEL} characters, got {text[:40]!r}"
                )


def find(directory: Path, recovered: Path | None = None) -> tuple[History, Path | None]:
    """Return the history to report on and the folder of its recoveries; ``directory`` may be either."""
    if (directory / LEDGER).exists() or not (found := recoveries_in(directory)):
        return History.open(directory), recovered
    return history_of(directory, found), recovered or directory


def page_data(
    history: History,
    malicious: Collection[ClientId] = (),
    recovered: Path | None = None,
    *,
    accuracy: bool = False,
    key: Path | None = None,
    since: Mapping[ClientId, int] | None = None,
    incident: Incident | None = None,
) -> dict[str, Any]:
    """Return all data of the page as plain values.

    ``malicious`` are the clients to mark, and ``since`` maps a client to its first malicious round, if that
    is not round 0. ``recovered`` is the folder of recoveries. ``accuracy`` evaluates the kept models, which
    takes time. A certificate counts as signed only if its signature is valid for the public ``key``. The
    saved result of ``audit`` or ``detect`` is included. Raises ``ConfigError`` if a client is not in the
    history, and ``DamagedError`` if a file is damaged.
    """
    if key is not None:
        check_public(key)
    recoveries = recoveries_of(recovered, history, key) if recovered else None
    marked = list(malicious) or (recoveries["malicious"] if recoveries else [])
    rounds = dict(since or {}) if malicious else (recoveries["since"] if recoveries else {})
    detection = run_detector(history)
    _check(history, malicious)
    clients = clients_of_page(history, suspects_of(detection), marked)
    _check_together(history, [rounds.get(client, 0) for client in clients.together])
    return {
        "version": __version__,
        "written": datetime.now(UTC).isoformat(timespec="minutes"),
        "incident": asdict(incident or Incident()),
        "trigger": trigger_facts(history, recovered),
        "marked": [client for client in marked if client in set(clients.clients)],
        "since": {client: t for client, t in rounds.items() if t},
        "recoveries": recoveries,
        "detection": detection_facts(history, detection, clients.clients),
        "strongest": strongest_first(history, detection, clients),
        "accuracy": accuracies(history) if accuracy else [],
        **history_data(history, clients),
    }


def _check(history: History, malicious: Collection[ClientId]) -> None:
    """Raise ConfigError for a client that neither took part in a round nor was rejected from one."""
    rejected = {r.client for entry in history.rounds for r in entry.rejected}
    if unknown := set(malicious) - set(history.clients) - rejected:
        raise ConfigError(f"{history.path}: no client {join_quoted(unknown)} in this history")


def _check_together(history: History, rounds: list[int]) -> None:
    """Raise ConfigError if grouped clients have different ``since``: they are one point per round."""
    if len(set(rounds)) > 1:
        raise ConfigError(
            f"{history.path}: too many marked clients for a page with a different --since each; "
            "give one round for all of them, or use 'fedcrab plan'"
        )


def write_page(path: Path, facts: dict[str, Any]) -> int:
    """Write the page atomically, and return its size in bytes."""
    page = render_page(facts).encode()
    with file_errors(f"{path}: the page was not written"):
        write_named(path, [page])
    return len(page)
