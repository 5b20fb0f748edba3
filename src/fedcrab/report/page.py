"""What `recover` left in a directory, as a page shows it. Needs no simulator: only files are read.

From a directory to a page: gather the facts, put them into the frame, write one file.

The certificates of recoveries: what is proved, what it assumes, what is no more than a figure.

The page around the facts: one file, nothing fetched, nothing in it that a client's name could break.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

from fedcrab import __version__
from fedcrab.certificate.document import NAME, read_certificate, signature_problems
from fedcrab.errors import ConfigError, DamagedError, HistoryError
from fedcrab.files import file_errors, write_named
from fedcrab.history import History
from fedcrab.history.chain import LEDGER
from fedcrab.recover.folder import RecoveryFolder, history_of, recoveries_in
from fedcrab.recover.methods import REFERENCE, rolls_back, title_of
from fedcrab.report.page_clients import carried
from fedcrab.report.page_data import accuracies, detection_facts, history_data, run_detector, suspects_of
from fedcrab.types import ClientId


def certificate_data(place: Path, head: str, key: Path | None = None) -> dict[str, Any] | None:
    """What the certificate of one recovery says, or None where there is none.

    It is called signed only where its signature holds for the public ``key``.
    """
    path = place / NAME
    if not path.exists():
        return None
    table = read_certificate(path)
    try:
        if table["subject"]["history"] != head:
            raise DamagedError(f"{path}: certifies another history, or another state of it")
        return {"path": str(path), **_signature(table, key), **_said(table)}
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path}: not a certificate as fedcrab writes it") from error


def _signature(table: Mapping[str, Any], key: Path | None) -> dict[str, Any]:
    """Whether the signature was checked and holds, and in words what is known of it."""
    if key is None:
        there = table["signature"] is not None
        told = "has a signature that was not checked (report --key does)" if there else "is not signed"
        return {"signed": False, "signature": told}
    if problems := signature_problems(table, key):
        return {"signed": False, "signature": f"is not signed by the key in {key} ({problems[0]})"}
    return {
        "signed": True,
        "signature": f"is signed by the key in {key}; this was checked when the page was written",
    }


def _said(table: Mapping[str, Any]) -> dict[str, Any]:
    terms, conclusion = table["terms"], table["conclusion"]
    stated = [_term(name, term) for name, term in terms.items() if term["value"] is not None]
    unknown = [str(name) for name, term in terms.items() if term["value"] is None]
    told = {"conclusion": _term(conclusion["by"], conclusion), "terms": stated, "unknown": unknown}
    nothing = conclusion.get("poisoned")  # certificates of the first format have none
    if nothing is None or nothing["value"] is None or conclusion["value"] is None:
        return told
    ranked = {"value": float(nothing["value"]), "nearer": str(conclusion["nearer"])}
    return {**told, "doing_nothing": ranked}


def _term(name: object, term: Mapping[str, Any]) -> dict[str, Any]:
    value = term["value"]
    return {
        "name": str(name),
        "value": None if value is None else float(value),
        "flag": str(term["flag"]),
        "formula": str(term["formula"]),
        "assumes": [str(text) for text in term["assumes"]],
    }


ASSETS = files("fedcrab.report") / "assets"
ARITHMETIC = ("arithmetic.js", "plan.js", "unpack.js")  # without a page: these run anywhere
SCRIPTS = (
    *ARITHMETIC,
    *("dom.js", "chart.js", "state.js", "decision.js", "timeline.js", "suspects.js", "map.js"),
    *("sensitivity.js", "cost.js", "recovered.js", "commands.js", "main.js"),
)


def asset(name: str) -> str:
    """The text of a file of the page."""
    return (ASSETS / name).read_text(encoding="utf-8")


def script() -> str:
    """All scripts as one, its names its own."""
    return '(() => {\n"use strict";\n' + "\n".join(asset(name) for name in SCRIPTS) + "})();\n"


def embedded(facts: Any) -> str:
    """JSON that can stand inside a script element: it can neither end it nor open a comment in it."""
    text = json.dumps(facts, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def render_page(facts: Any) -> str:
    """The whole page."""
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
    """As a Content-Security-Policy names the one script, or style, that may be there."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


NUMBERS = (
    *("ta", "asr", "misr", "rollback_round", "rounds", "contact_rounds", "client_rounds"),
    *("sample_gradients", "seconds", "bytes", "distance"),
)


def recoveries_of(out: Path, history: History, key: Path | None = None) -> dict[str, Any]:
    """The recoveries under a directory, all from this history; ``key`` is a public one."""
    found = recoveries_in(out)
    if not found:
        raise HistoryError(f"{out}: no recovery here; 'fedcrab recover' writes one")
    for folder in found:
        folder.check_history(history)
    head = history.contents.head
    whole = [
        {**_recovery(folder), "certificate": certificate_data(folder.path, head, key)} for folder in found
    ]
    rows = (folder.summary.get("poisoned") for folder in found)
    poisoned = next((row for row in rows if isinstance(row, dict)), None)
    return {
        "path": str(out),
        "malicious": found[0].summary["malicious"],
        "since": found[0].since(),
        "poisoned": _numbers(poisoned) if poisoned else None,
        "methods": whole,
    }


def _recovery(folder: RecoveryFolder) -> dict[str, Any]:
    summary, plan = folder.summary, folder.summary.get("plan")
    names = ("beta", "evidence", "rule", "unfound")  # since is beside: a table
    decision = {name: plan.get(name) for name in names} if isinstance(plan, dict) else {}
    return {
        "method": folder.method,
        "title": title_of(folder.method),
        "rolls_back": rolls_back(folder.method),
        "reference": folder.method == REFERENCE,
        "malicious": summary["malicious"],
        **_numbers(summary),
        "decision": {n: v for n, v in decision.items() if isinstance(v, str | float | int)},
        "model": summary["model_sha256"],
        "curve": [[work, _number(p.get("ta")), _number(p.get("asr"))] for work, p in folder.curve()],
    }


def _numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: _number(row.get(name)) for name in NUMBERS}


def _number(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return value if usable and isinstance(value, int | float) else None


def find(directory: Path, recovered: Path | None = None) -> tuple[History, Path | None]:
    """The history to report on, and where its recoveries are: ``directory`` may be either."""
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
) -> dict[str, Any]:
    """Everything that the page says, as plain values; ``accuracy`` has the kept models judged too.

    Certificates are called signed only where their signature holds for the public ``key``. ``since`` is from
    when on each of the malicious is, where that is not the first round.
    """
    recoveries = recoveries_of(recovered, history, key) if recovered else None
    marked = list(malicious) or (recoveries["malicious"] if recoveries else [])
    rounds = dict(since or {}) if malicious else (recoveries["since"] if recoveries else {})
    detection = run_detector(history)
    _check(history, malicious)
    clients = carried(history, suspects_of(detection), marked)
    _check_together(history, [rounds.get(client, 0) for client in clients.together])
    return {
        "version": __version__,
        "written": datetime.now(UTC).isoformat(timespec="minutes"),
        "marked": [client for client in marked if client in set(clients.clients)],
        "since": {client: t for client, t in rounds.items() if t},
        "recoveries": recoveries,
        "detection": detection_facts(detection, clients.clients),
        "accuracy": accuracies(history) if accuracy else [],
        **history_data(history, clients),
    }


def _check(history: History, malicious: Collection[ClientId]) -> None:
    """Everybody named took part, or tried to: whether the page has room for them is another matter."""
    rejected = {r.client for entry in history.rounds for r in entry.rejected}
    if unknown := set(malicious) - set(history.clients) - rejected:
        raise ConfigError(f"{history.path}: no client {', '.join(sorted(unknown))} in this history")


def _check_together(history: History, rounds: list[int]) -> None:
    """Marked clients without room of their own are one point in each round, so malicious since one round."""
    if len(set(rounds)) > 1:
        raise ConfigError(
            f"{history.path}: a page has no room for so many marked clients each since a round of its own; "
            "give one round for all, or decide by 'fedcrab plan'"
        )


def write_page(path: Path, facts: dict[str, Any]) -> int:
    """One file, whole or absent; gives its size in bytes."""
    page = render_page(facts).encode()
    with file_errors(f"{path}: the page is not written"):
        write_named(path, [page])
    return len(page)
