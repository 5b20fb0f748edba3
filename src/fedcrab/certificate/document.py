"""The file of a certificate: canonical JSON, inputs with their digests, and a signature.

Canonical JSON has sorted keys, one space of indentation, ASCII only, numbers as Python prints them, and one
newline at the end. The size of a file is checked before it is parsed. NaN, infinite numbers and duplicate
keys are rejected.

The inputs determine the rest of a certificate, together with the history and the recovery. Each field has
its own digest, and there is one digest of all fields, so that ``verify`` can name a changed field. The
Ed25519 signature covers the canonical bytes without the signature.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from fedcrab.certificate.assumptions import Assumptions
from fedcrab.certificate.noise import check_budget
from fedcrab.errors import ConfigError, DamagedError
from fedcrab.files import file_errors, read_regular, sync_directory, write_named
from fedcrab.history import History
from fedcrab.history.signature import PLACE, is_by, problems_of, sign
from fedcrab.recover.calibrate import check_cap
from fedcrab.rollback.decision import OPTIONAL, SETTINGS, Plan, plan

LARGEST = 2**22  # bytes
DEEPEST = 8  # tables within tables
NAME = "certificate.json"


def canonical(table: Mapping[str, Any]) -> bytes:
    """Return the canonical bytes of a certificate."""
    return (json.dumps(table, indent=1, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def write_certificate(path: Path, table: Mapping[str, Any]) -> None:
    """Write a certificate to a file atomically; raises ``HistoryError`` if it cannot be written."""
    with file_errors(f"{path}: the certificate was not written"):
        write_named(path, [canonical(table)])
        sync_directory(path.absolute().parent)


def read_certificate(path: Path) -> dict[str, Any]:
    """Return the certificate in a file as plain values; raises ``DamagedError`` if it is not one."""
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
        raise DamagedError(f"{path}: not a certificate (not valid JSON)") from error
    if not same:
        raise DamagedError(f"{path}: not a certificate written by fedcrab (its JSON is not canonical)")
    return dict(table)


def _is_flat(table: Any) -> bool:
    """Whether no value is nested more deeply than in a certificate."""
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
        raise DamagedError(f"{twice[:40]!r} occurs twice")
    return table


def _refuse(name: str) -> Any:
    raise DamagedError(f"{name} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise DamagedError(f"{text[:40]} is not a finite number")
    return number


NAMES = (*SETTINGS, "method", "aggregation", "crab", "assumptions", "estimate", "noise")
CRAB = ("cap", "gap", "settle")
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Inputs:
    """Who is malicious, how the rollback was decided, how the recovery ran, and the declared constants."""

    decision: Mapping[str, Any]  # malicious, beta, evidence, rule; since and unfound if they are used
    method: str = ""
    aggregation: str = "fedavg"  # of the recovery
    crab: Mapping[str, Any] | None = None  # gap, cap, settle, if the method is crab
    assumptions: Assumptions = field(default_factory=Assumptions)
    estimate: bool = True  # whether constants that are not declared are estimated
    noise: Mapping[str, float] | None = None  # epsilon, delta
    batches: str = "history"  # which batches clients drew in recovery and retraining: history or fresh

    def __post_init__(self) -> None:
        for name in (self.method, self.aggregation):
            if not isinstance(name, str) or not name.isprintable() or len(name) > LONGEST_NAME:
                raise ConfigError(f"method and aggregation must be names, got {str(name)[:40]!r}")
        if self.batches not in ("history", "fresh"):
            raise ConfigError(f"batches must be history or fresh, got {str(self.batches)[:40]!r}")
        if not isinstance(self.estimate, bool):
            raise ConfigError(f"estimate must be true or false, got {str(self.estimate)[:40]!r}")
        if self.crab is not None:
            _check_crab(self.crab)
        if self.noise is not None:
            _only(self.noise, ("epsilon", "delta"), "noise")
            check_budget(self.noise["epsilon"], self.noise["delta"])

    @property
    def same_batches(self) -> bool:
        """Whether clients drew the history's batches in the recovery; full batches are always the same."""
        return self.batches == "history" or self.assumptions.full_batch

    @classmethod
    def of(cls, plan: Plan, **others: Any) -> Inputs:
        """Return the inputs for a plan; ``others`` are the other fields."""
        return cls(plan.decision(), **others)

    def plan(self, history: History) -> Plan:
        """Compute the plan again from the history."""
        return plan(history, **self.decision)

    def to_table(self) -> dict[str, Any]:
        """Return the inputs as plain values."""
        return {
            **self.decision,
            "method": self.method,
            "aggregation": self.aggregation,
            "crab": None if self.crab is None else dict(self.crab),
            "assumptions": self.assumptions.to_table(),
            "estimate": self.estimate,
            "noise": None if self.noise is None else dict(self.noise),
            **({} if self.batches == "history" else {"batches": self.batches}),
        }

    @classmethod
    def from_table(cls, table: Any) -> Inputs:
        """Return the inputs in a table from an untrusted file; raises ``ConfigError`` if it is invalid."""
        more = [name for name in OPTIONAL if isinstance(table, Mapping) and name in table]
        fresh = ["batches"] if isinstance(table, Mapping) and "batches" in table else []
        _only(table, (*NAMES, *more, *fresh), "inputs")
        _only(table["assumptions"], None, "assumptions")
        malicious = table["malicious"]
        if not isinstance(malicious, list) or not all(isinstance(client, str) for client in malicious):
            raise ConfigError("malicious must be a list of client ids")
        if (
            isinstance(table["beta"], bool)
            or not isinstance(table["beta"], int | float)
            or table["beta"] > 1e100
        ):
            raise ConfigError("beta must be a number of 0 or more")
        if not isinstance(table["evidence"], str) or not isinstance(table["rule"], str):
            raise ConfigError("evidence and rule must be names")
        if "since" in more:
            _check_since(table["since"], malicious)
        if "unfound" in more and (type(table["unfound"]) is not int or table["unfound"] < 1):
            raise ConfigError("unfound must be a whole number of 1 or more")
        decision = {name: table[name] for name in (*SETTINGS, *more)}
        rest = {name: table[name] for name in ("method", "aggregation", "crab", "estimate", "noise", *fresh)}
        return cls(decision, assumptions=Assumptions.from_table(table["assumptions"]), **rest)


def _only(table: Any, names: tuple[str, ...] | None, what: str) -> None:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{what} must be a table of values")
    if names is not None and (other := sorted({*map(str, table)} ^ {*names})):
        raise ConfigError(f"{what}: {other[0][:40]!r} is missing or unexpected")


def _check_since(since: Any, malicious: list[str]) -> None:
    """Check a table of rounds above 0 for some of the malicious clients."""
    rounds = since if isinstance(since, Mapping) else {}
    if not rounds or not all(type(t) is int and t > 0 and c in malicious for c, t in rounds.items()):
        raise ConfigError("since must have rounds of 1 or more for some of the malicious clients")


def _check_crab(crab: Any) -> None:
    _only(crab, CRAB, "crab")
    check_cap(crab["cap"])
    settle = crab["settle"]
    if (
        not isinstance(crab["gap"], bool)
        or not isinstance(settle, int)
        or isinstance(settle, bool)
        or settle < 0
    ):
        raise ConfigError("crab needs gap (true or false) and settle (a whole number of 0 or more)")


def digests(table: Mapping[str, Any]) -> dict[str, str]:
    """Return the sha256 of each field, and of all together."""
    found = {name: _sha(name, value) for name, value in fields_of(table)}
    return {**found, "all": _sha("all", dict(table))}


def fields_of(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return each field with its dotted name; a list counts as one field."""
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        inner = fields_of(value) if isinstance(value, Mapping) else []
        found += [(f"{name}.{inner_name}", leaf) for inner_name, leaf in inner] or [(str(name), value)]
    return found


def _sha(name: str, value: Any) -> str:
    text = json.dumps([name, value], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def signed(table: Mapping[str, Any], key: Path) -> dict[str, Any]:
    """Return the certificate signed with this private key."""
    return {**table, PLACE: sign(_message(table), key)}


def signature_problems(table: Mapping[str, Any], key: Path | None) -> list[str]:
    """Return the problems of the signature; empty if there is no signature and no key is given."""
    return problems_of(table.get(PLACE), _message(table), key, what="certificate")


def is_signed_by(table: Mapping[str, Any], key: Path) -> bool:
    """Whether the certificate has a valid signature by this private key."""
    return is_by(table.get(PLACE), _message(table), key)


def _message(table: Mapping[str, Any]) -> bytes:
    return canonical({**table, PLACE: None})
