"""What `recover` left in a directory, as a page shows it. Needs no simulator: only files are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from fedcrab.errors import DamagedError, HistoryError
from fedcrab.history.disk import read_regular
from fedcrab.recover.progress import saved_steps
from fedcrab.report.page.certificates import certificate_of

SUMMARY, CURVE = "summary.json", "curve.jsonl"
LARGEST = 2**26  # bytes
NUMBERS = (
    *("ta", "asr", "misr", "rollback_round", "rounds", "client_rounds"),
    *("sample_gradients", "seconds", "bytes", "distance"),
)


def summaries_in(out: Path) -> dict[Path, dict[str, Any]]:
    """The summaries of a directory, its own or those of its folders."""
    places = [out, *sorted(p for p in out.iterdir() if p.is_dir())] if out.is_dir() else []
    return {place: _summary(place / SUMMARY) for place in places if (place / SUMMARY).is_file()}


def recoveries_of(out: Path, head: str) -> dict[str, Any]:
    """The recoveries under a directory, all from the history with this head."""
    found = summaries_in(out)
    if not found:
        raise HistoryError(f"{out}: no recovery here; 'fedcrab recover' writes one")
    for place, summary in found.items():
        if summary["history_head"] != head:
            raise DamagedError(f"{place}: recovered from another history, or another state of it")
    whole = [
        {**_recovery(place, summary), "certificate": certificate_of(place, head)}
        for place, summary in found.items()
    ]
    poisoned = next((s["poisoned"] for s in found.values() if isinstance(s.get("poisoned"), dict)), None)
    first = next(iter(found.values()))
    return {
        "path": str(out),
        "malicious": _texts(first.get("malicious")),
        "poisoned": _numbers(poisoned) if poisoned else None,
        "methods": whole,
    }


def _recovery(place: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    plan = summary.get("plan")
    names = ("beta", "evidence", "rule", "unfound")
    decision = {name: plan.get(name) for name in names} if isinstance(plan, dict) else {}
    return {
        "method": summary["method"],
        "malicious": _texts(summary.get("malicious")),
        **_numbers(summary),
        "decision": {n: v for n, v in decision.items() if isinstance(v, str | float | int)},
        "model": summary.get("model_sha256") if isinstance(summary.get("model_sha256"), str) else "",
        "curve": _curve(place),
    }


def _curve(place: Path) -> list[list[float | None]]:
    """Client-rounds spent so far, accuracy, attack success: a row for each step that was measured."""
    if not (place / CURVE).is_file():
        return []
    points = {point.get("round"): point for point in _lines(place / CURVE)}
    work, curve = 0, []
    for t, asked in [(None, 0), *_asked(place)]:
        work += asked
        if t in points:
            curve.append([work, _number(points[t].get("ta")), _number(points[t].get("asr"))])
    return curve


def _asked(place: Path) -> list[tuple[int, int]]:
    try:
        return [(int(step["round"]), len(step["asked"])) for step in saved_steps(place)]
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{place}: a step cannot be read") from error


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines that are whole: the last one may have been cut off by a kill."""
    points = []
    for line in read_regular(path, limit=LARGEST).decode(errors="replace").splitlines():
        try:
            point = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(point, dict) and isinstance(point.get("round"), int | None):
            points.append(point)
    return points


def _summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(read_regular(path, limit=LARGEST))
        texts = [summary[name] for name in ("method", "history", "history_head")]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{path}: not the summary of a recovery") from error
    if not all(isinstance(text, str) for text in texts):
        raise DamagedError(f"{path}: not the summary of a recovery")
    return dict(summary)


def _numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: _number(row.get(name)) for name in NUMBERS}


def _number(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return value if usable and isinstance(value, int | float) else None


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
