"""Verification of a certificate: compute it again and compare every field."""

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

NUDGES = (0.0, 1e-11, -1e-11)  # another machine may add in a different order
MOST_PROBLEMS = 20
LONGEST = 300  # characters per problem


def verify_certificate(
    path: Path, *, history: Path | None = None, retrained: Path | None = None, key: Path | None = None
) -> list[str]:
    """Return one sentence per problem of a certificate; an empty list means that it is verified.

    The certificate must be in the recovery's folder. ``history`` is the path of the history (by default the
    one that the recovery used), ``retrained`` the folder of a retraining (by default ``retrain`` beside the
    recovery's folder), and ``key`` a public key that must have signed it. Raises ``DamagedError`` if a file
    is damaged, and ``HistoryError`` if there is no history.
    """
    table = read_certificate(path)
    if table.get("format") not in FORMATS:
        return [f"{path}: format: must be one of {', '.join(map(repr, FORMATS))}"]
    problems = input_problems(table)
    if not problems:
        opened = history_of(path.parent, history)
        problems = head_problems(table, opened)
    if not problems:
        problems = statement_problems(table, opened, evidence_beside(path.parent, table, opened, retrained))
    problems += signature_problems(table, key)
    return [printable(f"{path}: {problem}")[:LONGEST] for problem in problems[:MOST_PROBLEMS]]


def history_of(folder: Path, history: Path | None) -> History:
    """Return the history at the given path, or the one that the recovery used."""
    recovery = RecoveryFolder(folder)
    if history is None and not recovery.is_there:
        raise HistoryError(f"{folder}: there is no recovery beside the certificate; name the --history")
    return recovery.open_history(history)


def evidence_beside(
    folder: Path, table: Mapping[str, Any], history: History, retrained: Path | None
) -> RecoveryArtifacts:
    """Return models and steps of the recovery in the folder, and of the certificate's retraining, if any."""
    recovery = RecoveryFolder(folder)
    if not recovery.is_there:
        return RecoveryArtifacts()
    subject = table.get("subject")
    hashes = subject if isinstance(subject, Mapping) else {}
    retraining = None
    if retrained or hashes.get("retrained_model") or hashes.get("retrained_steps"):
        retraining = RecoveryFolder.open(retrained or folder.absolute().parent / "retrain")
    return recovery.evidence(history, retraining, as_it_is=True)


def input_problems(table: Mapping[str, Any]) -> list[str]:
    """Return the problems of the inputs: not matching their digests, or invalid."""
    inputs, stored = table.get("inputs"), table.get("inputs_sha256")
    if not isinstance(inputs, Mapping) or not isinstance(stored, Mapping):
        return ["inputs and inputs_sha256: must be two tables of values"]
    computed = digests(inputs)
    wrong = [name for name in {**computed, **stored} if computed.get(name) != stored.get(name)]
    if wrong and ("all" not in wrong or wrong == ["all"]):
        return [f"inputs_sha256.{name}: does not match its input" for name in wrong]
    if wrong:
        return [f"inputs.{name}: changed, does not match its hash" for name in wrong if name != "all"]
    try:
        Inputs.from_table(inputs)
    except ConfigError as error:
        return [f"inputs: {error}"]
    return []


def head_problems(table: Mapping[str, Any], history: History) -> list[str]:
    """Return a problem if the certificate is about another history."""
    subject, head = table.get("subject"), history.contents.head
    if isinstance(subject, Mapping) and subject.get("history") != head:
        return [f"subject.history: differs from the head of {history.path}, {head[:16]}…"]
    return []


def statement_problems(table: Mapping[str, Any], history: History, evidence: RecoveryArtifacts) -> list[str]:
    """Return the fields that differ when the certificate is computed again."""
    inputs = Inputs.from_table(table["inputs"])
    try:
        again = build_certificate(inputs, inputs.plan(history), evidence, table["format"])
    except ConfigError as error:
        return [f"inputs: {error}"]
    versions = [{**again.to_table(nudge), PLACE: None} for nudge in NUDGES]
    return list(_differences({**table, PLACE: None}, versions, ""))


def _differences(stored: Any, computed: list[Any], name: str) -> Iterator[str]:
    """Yield the values that differ from all computed versions."""
    if isinstance(stored, Mapping) and isinstance(computed[0], Mapping):
        for key in {**computed[0], **stored}:
            field = f"{name}.{key}" if name else str(key)
            if key not in stored:
                yield f"{field}: missing"
            elif key not in computed[0]:
                yield f"{field}: not a field of a certificate"
            else:
                yield from _differences(stored[key], [version[key] for version in computed], field)
    elif not any(_same(stored, version) for version in computed):
        yield f"{name}: {_shown(stored)}, but computed again it is {_shown(computed[0])}"


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
