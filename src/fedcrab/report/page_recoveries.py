"""The page's data about recoveries and their certificates, read from their files; no simulator is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from fedcrab.certificate.document import NAME, read_certificate, signature_problems
from fedcrab.errors import DamagedError, HistoryError
from fedcrab.evaluate import best_recovery, why_best
from fedcrab.history import History
from fedcrab.recover.folder import MODEL, RecoveryFolder, recoveries_in
from fedcrab.recover.methods import REFERENCE, rolls_back, title_of
from fedcrab.types import Vector
from fedcrab.vectors import norm

NUMBERS = (
    *("ta", "asr", "misr", "rollback_round", "rounds", "contact_rounds", "client_rounds"),
    *("sample_gradients", "seconds", "bytes", "distance"),
)


def recoveries_of(out: Path, history: History, key: Path | None = None) -> dict[str, Any]:
    """Return the recoveries in a folder; ``key`` is a public key for their certificates.

    Raises ``HistoryError`` if there is none, or one is of another history.
    """
    found = recoveries_in(out)
    if not found:
        raise HistoryError(f"{out}: contains no recovery; 'fedcrab recover' writes one")
    for folder in found:
        folder.check_history(history)
    head = history.contents.head
    whole = [
        {**_recovery(folder), "certificate": certificate_data(folder.path, head, key)} for folder in found
    ]
    rows = (folder.summary.get("poisoned") for folder in found)
    poisoned = next((_numbers(row) for row in rows if isinstance(row, dict)), None)
    best = best_recovery(whole)
    return {
        "path": str(out),
        "malicious": found[0].summary["malicious"],
        "since": found[0].since(),
        "poisoned": poisoned,
        "methods": whole,
        "deploy": best,
        "why": why_best(best, whole) if best else "",
        "distances": _distances(found, history),
    }


def _distances(found: Sequence[RecoveryFolder], history: History) -> dict[str, float]:
    """Return the distance of each model to the retrained one, and how far training moved the model."""
    if not history.rounds:
        return {}
    final = history.final_model()
    distances = {"training": _distance(final, history.initial_model())}
    models = {f.method: f.model(history) for f in found if (f.path / MODEL).exists()}
    if (scratch := models.get(REFERENCE)) is not None:
        distances |= {
            name: _distance(model, scratch) for name, model in {"poisoned": final, **models}.items()
        }
    return distances


def _distance(a: Vector, b: Vector) -> float:
    return float(norm(a.astype("f8") - b))


def _recovery(folder: RecoveryFolder) -> dict[str, Any]:
    summary, plan = folder.summary, folder.summary.get("plan")
    names = ("beta", "evidence", "rule", "unfound")  # since is a table, and stored elsewhere
    decision = {name: plan.get(name) for name in names} if isinstance(plan, dict) else {}
    return {
        "method": folder.method,
        "path": str(folder.path / MODEL),
        "title": title_of(folder.method),
        "rolls_back": rolls_back(folder.method),
        "reference": folder.method == REFERENCE,
        "malicious": summary["malicious"],
        **_numbers(summary),
        "decision": {n: v for n, v in decision.items() if isinstance(v, str | float | int)},
        "model": summary["model_sha256"],
        "curve": [[work, _number(p.get("ta")), _number(p.get("asr"))] for work, p in folder.curve()],
    }


def _numbers(row: Mapping[str, Any]) -> dict[str, float | bool | None]:
    numbers = {name: _number(row.get(name)) for name in NUMBERS}
    return {**numbers, "misrIsChance": row.get("misr_beyond_chance") is False}


def _number(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return value if usable and isinstance(value, int | float) else None


def certificate_data(folder: Path, head: str, key: Path | None = None) -> dict[str, Any] | None:
    """Return the statements of a recovery's certificate; None if it has none.

    It counts as signed only if its signature is valid for the public ``key``. Raises ``DamagedError`` if it
    is damaged, or its history does not have this head.
    """
    path = folder / NAME
    if not path.exists():
        return None
    table = read_certificate(path)
    try:
        if table["subject"]["history"] != head:
            raise DamagedError(f"{path}: is about another history, or another state of this one")
        return {"path": str(path), **_signature(table, key), **_statements(table)}
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path}: not a certificate written by fedcrab") from error


def _signature(table: Mapping[str, Any], key: Path | None) -> dict[str, Any]:
    """Return whether the signature was checked and is valid, also in words."""
    if key is None:
        present = table["signature"] is not None
        words = "has a signature that was not checked (report --key does)" if present else "is not signed"
        return {"signed": False, "signature": words}
    if problems := signature_problems(table, key):
        return {"signed": False, "signature": f"is not signed by the key in {key} ({problems[0]})"}
    return {
        "signed": True,
        "signature": f"is signed by the key in {key}; this was checked when the page was written",
    }


def _statements(table: Mapping[str, Any]) -> dict[str, Any]:
    terms, conclusion = table["terms"], table["conclusion"]
    known = [_term(name, term) for name, term in terms.items() if term["value"] is not None]
    unknown = [str(name) for name, term in terms.items() if term["value"] is None]
    data = {"conclusion": _term(conclusion["by"], conclusion), "terms": known, "unknown": unknown}
    poisoned = conclusion.get("poisoned")  # missing in format 1
    if poisoned is None or poisoned["value"] is None or conclusion["value"] is None:
        return data
    comparison = {"value": float(poisoned["value"]), "nearer": str(conclusion["nearer"])}
    return {**data, "doing_nothing": comparison}


def _term(name: object, term: Mapping[str, Any]) -> dict[str, Any]:
    value = term["value"]
    return {
        "name": str(name),
        "value": None if value is None else float(value),
        "flag": str(term["flag"]),
        "formula": str(term["formula"]),
        "assumes": [str(text) for text in term["assumes"]],
    }
