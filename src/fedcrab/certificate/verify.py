"""Verify a certificate: compute it again and compare field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedcrab.certificate.certificate import FORMATS, build_certificate
from fedcrab.certificate.document import Inputs, digests, read_certificate, signature_problems
from fedcrab.errors import ConfigError, HistoryError
from fedcrab.history import History
from fedcrab.history.signature import PLACE
from fedcrab.recover.folder import RecoveryArtifacts, RecoveryFolder
from fedcrab.terminal import printable

NUDGES = (0.0, 1e-11, -1e-11)  # another machine may add in another order
TOLD = 20  # problems
LONGEST = 300  # characters of one


def verify_certificate(
    path: Path, *, history: Path | None = None, retrained: Path | None = None, key: Path | None = None
) -> list[str]:
    """Return one sentence per problem of a certificate; an empty list means that it is verified.

    The certificate must be in the recovery's folder. ``history`` is the place of the history, ``retrained``
    the folder of a retraining (default: ``retrain`` beside the recovery's folder), ``key`` a public key.
    """
    table = read_certificate(path)
    if table.get("format") not in FORMATS:
        return [f"{path}: format: none of {', '.join(map(repr, FORMATS))}"]
    problems = input_problems(table)
    if not problems:
        opened = history_of(path.parent, history)
        problems = head_problems(table, opened)
    if not problems:
        problems = statement_problems(table, opened, evidence_beside(path.parent, table, opened, retrained))
    problems += signature_problems(table, key)
    return [printable(f"{path}: {problem}")[:LONGEST] for problem in problems[:TOLD]]


def history_of(folder: Path, history: Path | None) -> History:
    """The history of the certificate: at the given place, or where the recovery found it."""
    recovery = RecoveryFolder(folder)
    if history is None and not recovery.is_there:
        raise HistoryError(f"{folder}: there is no recovery beside the certificate; give its --history")
    return recovery.open_history(history)


def evidence_beside(
    folder: Path, table: Mapping[str, Any], history: History, retrained: Path | None
) -> RecoveryArtifacts:
    """Models and steps of the recovery in the folder, and of the retraining that the certificate mentions."""
    recovery = RecoveryFolder(folder)
    if not recovery.is_there:
        return RecoveryArtifacts()
    about = table.get("subject")
    speaks = isinstance(about, Mapping) and (about.get("retrained_model") or about.get("retrained_steps"))
    again = (
        RecoveryFolder.open(retrained or folder.absolute().parent / "retrain")
        if speaks or retrained
        else None
    )
    return recovery.evidence(history, again, as_it_is=True)


def input_problems(table: Mapping[str, Any]) -> list[str]:
    """Inputs that do not match their digests, or are invalid."""
    inputs, found = table.get("inputs"), table.get("inputs_sha256")
    if not isinstance(inputs, Mapping) or not isinstance(found, Mapping):
        return ["inputs and inputs_sha256: not two tables of values"]
    right = digests(inputs)
    wrong = [name for name in {**right, **found} if right.get(name) != found.get(name)]
    if wrong and ("all" not in wrong or wrong == ["all"]):
        return [f"inputs_sha256.{name}: not the hash of what it names" for name in wrong]
    if wrong:
        return [f"inputs.{name}: changed, its hash is another" for name in wrong if name != "all"]
    try:
        Inputs.from_table(inputs)
    except ConfigError as error:
        return [f"inputs: {error}"]
    return []


def head_problems(table: Mapping[str, Any], history: History) -> list[str]:
    """Whether the certificate is about another history."""
    subject, head = table.get("subject"), history.contents.head
    if isinstance(subject, Mapping) and subject.get("history") != head:
        return [f"subject.history: not the head of {history.path}, {head[:16]}…"]
    return []


def statement_problems(table: Mapping[str, Any], history: History, evidence: RecoveryArtifacts) -> list[str]:
    """Fields that differ when the certificate is computed again."""
    inputs = Inputs.from_table(table["inputs"])
    try:
        again = build_certificate(inputs, inputs.plan(history), evidence, table["format"])
    except ConfigError as error:
        return [f"inputs: {error}"]
    versions = [{**again.to_table(nudge), PLACE: None} for nudge in NUDGES]
    return list(_differences({**table, PLACE: None}, versions, ""))


def _differences(found: Any, right: list[Any], name: str) -> Iterator[str]:
    """The values that differ from all recomputed versions."""
    if isinstance(found, Mapping) and isinstance(right[0], Mapping):
        for key in {**right[0], **found}:
            place = f"{name}.{key}" if name else str(key)
            if key not in found:
                yield f"{place}: missing"
            elif key not in right[0]:
                yield f"{place}: has no place in a certificate"
            else:
                yield from _differences(found[key], [version[key] for version in right], place)
    elif not any(_same(found, version) for version in right):
        yield f"{name}: {_shown(found)}, where {_shown(right[0])} comes out"


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
