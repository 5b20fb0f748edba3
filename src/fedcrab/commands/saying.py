"""What goes to standard output."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.text import Text


def say(*things: Any) -> None:
    """Tables and lines, as wide as the terminal; 120 columns into a pipe."""
    width = None if sys.stdout.isatty() else 120
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    for thing in things:
        console.print(thing, soft_wrap=isinstance(thing, Text) and bool(thing.no_wrap))


def say_json(value: Any) -> None:
    """One JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
