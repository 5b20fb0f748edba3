"""Recoveries and their certificates, as the page shows them: read from files alone, no simulator needed."""

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
    """Distance of each model to the retrained one, and how far training moved the model."""
    if not history.rounds:
        return {}
    final = history.final_model()
    told = {"training": _apart(final, history.initial_model())}
    models = {f.method: f.model(history) for f in found if (f.path / MODEL).exists()}
    if (scratch := models.get(REFERENCE)) is not None:
        told |= {name: _apart(model, scratch) for name, model in {"poisoned": final, **models}.items()}
    return told


def _apart(a: Vector, b: Vector) -> float:
    return float(norm(a.astype("f8") - b))


def _recovery(folder: RecoveryFolder) -> dict[str, Any]:
    summary, plan = folder.summary, folder.summary.get("plan")
    names = ("beta", "evidence", "rule", "unfound")  # since is beside: a table
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
    told = {name: _number(row.get(name)) for name in NUMBERS}
    return {**told, "misrIsChance": row.get("misr_beyond_chance") is False}


def _number(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return value if usable and isinstance(value, int | float) else None


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
