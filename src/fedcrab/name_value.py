"""Settings as people type them, ``name=value``: one parser for ``--set``, ``--assume`` and suites."""

from __future__ import annotations

import tomllib
from typing import Any

from fedcrab.errors import ConfigError


def split_pair(text: str, *, option: str, example: str) -> tuple[str, str]:
    """Return name and value; raise ``ConfigError`` if there is no name or no ``=``."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"{option} takes name=value such as {example}, got {text[:60]!r}")
    return name.strip(), value.strip()


def put(table: dict[str, Any], place: str, value: Any) -> None:
    """Set the value at ``place``, such as ``a.b.c``, in nested tables."""
    *parents, last = place.split(".")
    for name in parents:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{place}: {name!r} is a value, not a table")
    table[last] = value


def toml_value(text: str) -> Any:
    """Return a TOML value such as ``0.5``, ``true`` or ``{a=1}``; anything else is a plain word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
