"""Who is named malicious, and over which history: what a command was given, what a detector found, what an
earlier recovery already left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from fedcrab.errors import ConfigError, DamagedError
from fedcrab.history import History
from fedcrab.history.disk import read_regular
from fedcrab.types import ClientId

SUSPECTS = "Suspects:"  # begins the line by which people, and we, know them in what detect prints
NO_SIGN = "No sign of attack"
SUMMARY = "summary.json"  # of a recovery
LONGEST = 2**26  # bytes


def named(option: str, given: TextIO) -> list[ClientId]:
    """The clients of an option such as ``3,7``; for ``-`` those on standard input.

    There they may be ids, by commas or lines, or what ``detect`` printed, for people or as JSON.
    """
    ids = _ids([option]) if option.strip() != "-" else _told(given.read(LONGEST))
    if not ids:
        raise ConfigError("--malicious names no client; give ids such as --malicious 3,7")
    return ids


def _told(text: str) -> list[ClientId]:
    if text.lstrip().startswith("{"):
        return _suspects(text)
    lines = text.splitlines()
    if any(line.startswith(NO_SIGN) for line in lines):
        raise _nobody()
    said = [line.removeprefix(SUSPECTS) for line in lines if line.startswith(SUSPECTS)]
    return _ids(said or lines)


def _suspects(text: str) -> list[ClientId]:
    """The suspects of a detection as JSON."""
    suspects = _parsed(text).get("suspects")
    if not _are_texts(suspects):
        raise ConfigError("standard input: not the JSON that 'fedcrab detect --json' writes")
    if not suspects:
        raise _nobody()
    return list(suspects)


def _parsed(text: str | bytes) -> dict[str, Any]:
    """A JSON table; an empty one for anything else."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _nobody() -> ConfigError:
    return ConfigError("standard input: the detector found no sign of attack, so nobody is named malicious")


def _ids(lines: Iterable[str]) -> list[ClientId]:
    return [part.strip() for line in lines for part in line.split(",") if part.strip()]


def open_with_earlier(directory: Path) -> tuple[History, frozenset[ClientId]]:
    """A history; or that of a recovery, with the clients that it already left out.

    So a second plan, when more attackers are found, is over the whole training and all of them.
    """
    places = [directory, *sorted(p for p in directory.iterdir() if p.is_dir())] if directory.is_dir() else []
    found = [_summary(place / SUMMARY) for place in places if (place / SUMMARY).is_file()]
    if not found:
        return History.open(directory), frozenset()
    histories = {(summary["history"], summary["history_head"]) for summary in found}
    if len(histories) > 1:
        raise ConfigError(f"{directory}: recoveries of different histories; name the one that is meant")
    path, head = histories.pop()
    history = History.open(path)
    if history.contents.head != head:
        raise DamagedError(f"{directory}: recovered from another state of {path}")
    return history, frozenset(client for summary in found for client in summary["malicious"])


def _summary(path: Path) -> dict[str, Any]:
    """What a recovery says of itself: its history and who was left out."""
    summary = _parsed(read_regular(path, limit=LONGEST))
    malicious = summary.get("malicious")
    if not _are_texts([summary.get("history"), summary.get("history_head")]) or not _are_texts(malicious):
        raise DamagedError(f"{path}: not the summary of a recovery")
    return summary
