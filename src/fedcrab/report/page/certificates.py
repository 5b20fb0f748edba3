"""The certificates of recoveries: what is proved, what it assumes, what is no more than a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcrab.certify.document import NAME, read_certificate
from fedcrab.errors import DamagedError


def certificate_of(place: Path, head: str) -> dict[str, Any] | None:
    """What the certificate of one recovery says, or None where there is none."""
    path = place / NAME
    if not path.exists():
        return None
    table = read_certificate(path)
    try:
        if table["subject"]["history"] != head:
            raise DamagedError(f"{path}: certifies another history, or another state of it")
        return {"path": str(path), "signed": bool(table["signature"]), **_said(table)}
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path}: not a certificate as fedcrab writes it") from error


def _said(table: Mapping[str, Any]) -> dict[str, Any]:
    terms, conclusion = table["terms"], table["conclusion"]
    stated = [_term(name, term) for name, term in terms.items() if term["value"] is not None]
    unknown = [str(name) for name, term in terms.items() if term["value"] is None]
    return {"conclusion": _term(conclusion["by"], conclusion), "terms": stated, "unknown": unknown}


def _term(name: object, term: Mapping[str, Any]) -> dict[str, Any]:
    value = term["value"]
    return {
        "name": str(name),
        "value": None if value is None else float(value),
        "flag": str(term["flag"]),
        "formula": str(term["formula"]),
        "assumes": [str(text) for text in term["assumes"]],
    }
