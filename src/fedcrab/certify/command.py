"""What the commands ``certify`` and ``verify`` do with certificates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from fedcrab.certify.assumptions import Assumptions
from fedcrab.certify.document import NAME, write_certificate
from fedcrab.certify.folder import SUMMARY, Folder
from fedcrab.certify.making import certificate_of, declared_in, find_folder
from fedcrab.certify.noise import check_budget
from fedcrab.certify.signature import signed
from fedcrab.certify.verification import verify_certificate
from fedcrab.errors import ConfigError, HistoryError
from fedcrab.history import History


def certify_command(
    place: Path,
    *,
    assume: Sequence[str] = (),
    history: Path | None = None,
    retrained: Path | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    key: Path | None = None,
    estimate: bool = True,
) -> tuple[Path, dict[str, Any]]:
    """Certify a recovery that lies on disk; gives the certificate's place and content."""
    folder, noise = find_folder(place), budget(epsilon, delta)
    opened = open_history(folder, history)
    certificate = certificate_of(
        folder,
        opened,
        assumptions=assumed(declared_in(folder), assume),
        retrained=Folder.open(retrained) if retrained else beside(folder),
        noise=noise or folder.noise(),
        estimate=estimate,
    )
    table = certificate.to_table()
    table = table if key is None else signed(table, key)
    write_certificate(folder.path / NAME, table)
    return folder.path / NAME, table


def budget(epsilon: float | None, delta: float | None) -> dict[str, float] | None:
    """Both, or neither."""
    if epsilon is None and delta is None:
        return None
    if epsilon is None or delta is None:
        raise ConfigError("noise needs both --epsilon and --delta")
    check_budget(epsilon, delta)
    return {"epsilon": epsilon, "delta": delta}


def open_history(folder: Folder, history: Path | None) -> History:
    """The history that was recovered from."""
    place = history or folder.history()
    if not place.is_dir():
        raise HistoryError(f"{place}: the history is not there; say where it is with --history")
    return History.open(place)


def beside(folder: Folder) -> Folder | None:
    """A retraining of the same request in the folder beside."""
    other = folder.path.absolute().parent / "retrain"
    if not (other / SUMMARY).is_file():
        return None
    again = Folder.open(other)
    same = all(again.request.get(name) == folder.request.get(name) for name in ("history", "malicious"))
    return again if same else None


def assumed(known: Assumptions, changes: Sequence[str]) -> Assumptions:
    """The assumptions with changes such as ``rate=0.1``; ``rate=null`` takes one back."""
    table, names = asdict(known), [f.name for f in fields(Assumptions)]
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or name.strip() not in names:
            raise ConfigError(f"--assume takes name=value, got {change[:60]!r}; names are {', '.join(names)}")
        table[name.strip()] = _value(change, text.strip())
    return Assumptions(**table)


def _value(change: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--assume {change[:60]}: a number, true, false or null is wanted") from error


def certificate_at(path: Path) -> Path | None:
    """The certificate that a path names: a file, or the one of a recovery's folder."""
    if path.is_file():
        return path
    return path / NAME if (path / NAME).is_file() else None


__all__ = ["assumed", "certificate_at", "certify_command", "verify_certificate"]
