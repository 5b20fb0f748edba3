"""What a certificate is asked for: the part of it that nothing else determines.

Each field has a digest of its own, and all have one together, so that a changed one can be named.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedcrab.certify.assumptions import Assumptions
from fedcrab.certify.noise import check_budget
from fedcrab.errors import ConfigError
from fedcrab.history import History
from fedcrab.recover.calibrate import check_cap
from fedcrab.rollback import SETTINGS, Plan, plan

NAMES = (*SETTINGS, "method", "aggregation", "crab", "assumptions", "estimate", "noise")
CRAB = ("cap", "gap", "settle")
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Inputs:
    """Who is malicious and how that was decided, how recovery was done, what is declared."""

    decision: Mapping[str, Any]  # malicious, beta, evidence, rule; unfound where there is any
    method: str = ""
    aggregation: str = "fedavg"  # of the recovery
    crab: Mapping[str, Any] | None = None  # gap, cap, settle, where the method is crab
    assumptions: Assumptions = field(default_factory=Assumptions)
    estimate: bool = True  # whether constants that are not declared are guessed
    noise: Mapping[str, float] | None = None  # epsilon, delta

    def __post_init__(self) -> None:
        for name in (self.method, self.aggregation):
            if not isinstance(name, str) or not name.isprintable() or len(name) > LONGEST_NAME:
                raise ConfigError(f"method and aggregation are names, got {str(name)[:40]!r}")
        if not isinstance(self.estimate, bool):
            raise ConfigError(f"estimate must be true or false, got {str(self.estimate)[:40]!r}")
        if self.crab is not None:
            _check_crab(self.crab)
        if self.noise is not None:
            _only(self.noise, ("epsilon", "delta"), "noise")
            check_budget(self.noise["epsilon"], self.noise["delta"])

    @classmethod
    def of(cls, plan: Plan, **others: Any) -> Inputs:
        """For this plan."""
        return cls(plan.decision(), **others)

    def plan(self, history: History) -> Plan:
        """The plan once more, from the history."""
        return plan(history, **self.decision)

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        return {
            **self.decision,
            "method": self.method,
            "aggregation": self.aggregation,
            "crab": None if self.crab is None else dict(self.crab),
            "assumptions": self.assumptions.to_table(),
            "estimate": self.estimate,
            "noise": None if self.noise is None else dict(self.noise),
        }

    @classmethod
    def from_table(cls, table: Any) -> Inputs:
        """What :meth:`to_table` wrote down; a stranger may have."""
        unfound = ("unfound",) if isinstance(table, Mapping) and "unfound" in table else ()
        _only(table, (*NAMES, *unfound), "inputs")
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
            raise ConfigError("evidence and rule are names")
        if unfound and (type(table["unfound"]) is not int or table["unfound"] < 1):
            raise ConfigError("unfound, where it is there, is a whole number of 1 or more")
        decision = {name: table[name] for name in (*SETTINGS, *unfound)}
        rest = {name: table[name] for name in ("method", "aggregation", "crab", "estimate", "noise")}
        return cls(decision, assumptions=Assumptions.from_table(table["assumptions"]), **rest)


def _only(table: Any, names: tuple[str, ...] | None, what: str) -> None:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{what} must be a table of values")
    if names is not None and (other := sorted({*map(str, table)} ^ {*names})):
        raise ConfigError(f"{what}: {other[0][:40]!r} is missing, or has no place there")


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
    """A sha256 of each field, and one of all."""
    found = {name: _sha(name, value) for name, value in fields_of(table)}
    return {**found, "all": _sha("all", dict(table))}


def fields_of(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Each field with its dotted name; a list is one field."""
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        inner = fields_of(value) if isinstance(value, Mapping) else []
        found += [(f"{name}.{below}", leaf) for below, leaf in inner] or [(str(name), value)]
    return found


def _sha(name: str, value: Any) -> str:
    text = json.dumps([name, value], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
