"""A certificate for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text


def certificate_tables(path: Path, table: Mapping[str, Any]) -> list[RenderableType]:
    """What is stated, how far it can be trusted, and the conclusion."""
    statements = Table("term", title="Statements", title_justify="left", title_style="bold")
    statements.add_column("value", justify="right")
    statements.add_column("flag")
    statements.add_column("formula")
    for name, term in table["terms"].items():
        if term["value"] is not None:
            statements.add_row(name, f"{term['value']:.6g}", term["flag"], term["formula"])
    unknown = [name for name, term in table["terms"].items() if term["value"] is None]
    left_out = Text(f"Not stated, for want of what they assume: {', '.join(unknown)}")
    return [statements, *([left_out] if unknown else []), _conclusion(table), Text(_written(path, table))]


def _conclusion(table: Mapping[str, Any]) -> Text:
    found = table["conclusion"]
    if found["value"] is None:
        return Text(
            "Nothing is proved of the distance to training from scratch: no κ is declared, and no retraining "
            "was run. docs/certificate.md says what can be declared."
        )
    assumed = "; ".join(found["assumes"]) or "nothing"
    return Text(
        f"Proved: the recovered model is at most {found['value']:.6g} from the one trained from scratch "
        f"({found['by']}). This assumes: {assumed}."
    )


def _written(path: Path, table: Mapping[str, Any]) -> str:
    signature = table["signature"]
    return f"{path}: " + (
        f"signed by {signature['public_key'][:16]}…" if signature else "written, not signed"
    )
