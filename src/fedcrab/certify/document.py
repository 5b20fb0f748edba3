"""A certificate as a file: canonical JSON, so that one certificate is one row of bytes.

Keys sorted, one space of indentation, ASCII, numbers as Python writes them, one newline at the end. A file
that comes from a stranger is bounded before it is parsed, and parsed without NaN, without a key twice,
without numbers that are not finite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from fedcrab.errors import DamagedError
from fedcrab.history.disk import explained, read_regular, sync_directory, write_named

LARGEST = 2**22  # bytes
DEEPEST = 8  # tables within tables
NAME = "certificate.json"


def canonical(table: Mapping[str, Any]) -> bytes:
    """The one way to write a certificate down."""
    return (json.dumps(table, indent=1, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def write_certificate(path: Path, table: Mapping[str, Any]) -> None:
    """Leave a certificate at its place, whole."""
    with explained(f"{path}: the certificate is not written"):
        write_named(path, [canonical(table)])
        sync_directory(path.absolute().parent)


def read_certificate(path: Path) -> dict[str, Any]:
    """The table in a certificate's file; anything that is no such file is refused in one sentence."""
    content = read_regular(path, limit=LARGEST)
    try:
        table = json.loads(
            content.decode("ascii"),
            object_pairs_hook=_once,
            parse_constant=_refuse,
            parse_float=_finite,
        )
        same = isinstance(table, dict) and _is_flat(table) and canonical(table) == content
    except DamagedError as error:
        raise DamagedError(f"{path}: not a certificate ({error})") from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: not a certificate (no JSON document that can be read)") from error
    if not same:
        raise DamagedError(f"{path}: not a certificate as fedcrab writes it (its JSON is not canonical)")
    return dict(table)


def _is_flat(table: Any) -> bool:
    """Whether nothing is nested more deeply than a certificate is."""
    level = [table]
    for _ in range(DEEPEST):
        tables = [v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)]
        level = [value for values in tables for value in values]
    return not level


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1) if len(names) < 1000 else "a name"
        raise DamagedError(f"{twice[:40]!r} stands in it twice")
    return table


def _refuse(name: str) -> Any:
    raise DamagedError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise DamagedError(f"{text[:40]} is not a finite number")
    return number
