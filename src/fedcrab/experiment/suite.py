"""Suites in TOML: a base configuration, lists that span a matrix, and methods with their options."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedcrab.errors import ConfigError
from fedcrab.experiment import names
from fedcrab.experiment.config import ConfigSection, explain
from fedcrab.history.selection import Selection, to_table
from fedcrab.rollback.decision import OPTIONAL

MEASURES = {
    "ta": "TA %",
    "asr": "ASR %",
    "asr_with_target": "ASR %, with target class",
    "misr": "MISR %",
    "misr_balanced_accuracy": "MISR balanced %",
    "misr_auc": "MISR AUC",
    "rollback_round": "rollback",
    "rounds": "rounds",
    "contact_rounds": "rounds with contact",
    "client_rounds": "client-rounds",
    "sample_gradients": "sample-gradients",
    "seconds": "s",
    "seconds_a_round": "s per round",
    "bytes": "history, bytes",
    "distance": "distance",
}
SHARES = ("ta", "asr", "asr_with_target", "misr", "misr_balanced_accuracy")  # shown in percent


class AxisValue(ConfigSection):
    """One value of an axis: a name, its settings, and other settings that belong to it."""

    name: str
    label: str = ""
    settings: dict[str, Any] | None = None  # of an attack or a partition
    set: dict[str, Any] = Field(default_factory=dict)  # any other settings of the configuration


class MethodChoice(BaseModel):
    """A recovery method with options of the decision, such as ``beta``, or of the method, such as ``cap``."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    method: str
    label: str = ""
    history: dict[str, Any] = Field(default_factory=dict)  # other settings of the selection it recovers from
    batches: str = ""  # fresh or history; empty: as in the suite

    @property
    def options(self) -> dict[str, Any]:
        """All options except name, label, history and batches."""
        return dict(self.model_extra or {})


class Suite(ConfigSection):
    """A matrix of experiments: every combination of the lists; an empty list keeps the base's value."""

    base: str = "digits"  # a preset, or a TOML file beside the suite
    set: dict[str, Any] = Field(default_factory=dict)
    datasets: list[str | AxisValue] = Field(default_factory=list)
    models: list[str | AxisValue] = Field(default_factory=list)
    attacks: list[str | AxisValue] = Field(default_factory=list)
    fractions: list[float] = Field(default_factory=list)
    partitions: list[str | AxisValue] = Field(default_factory=list)
    vary: dict[str, list[Any]] = Field(
        default_factory=dict
    )  # any setting as an axis: "clients.count" = [5, 10]
    methods: list[str | MethodChoice] = Field(default_factory=list)
    batches: str = "fresh"  # that clients draw during recovery; published cells use those of the history
    seeds: list[int] = Field(default_factory=lambda: [0])
    membership: bool = False  # measure MISR too, with one shadow training per training
    reference: str = names.REFERENCE  # the method that others are tested against
    measures: list[str] = Field(
        default_factory=lambda: ["ta", "asr", "contact_rounds", "client_rounds", "seconds", "distance"]
    )

    @field_validator("measures")
    @classmethod
    def _known(cls, measures: list[str]) -> list[str]:
        if unknown := [name for name in measures if name not in MEASURES]:
            raise ValueError(f"no measure {unknown[0]!r}; there are {', '.join(MEASURES)}")
        return measures

    @field_validator("seeds")
    @classmethod
    def _some(cls, seeds: list[int]) -> list[int]:
        if not seeds:
            raise ValueError("at least one seed is needed")
        return seeds


def load_suite(path: Path) -> Suite:
    """Return the suite in a TOML file; its base is a preset, or a file relative to the suite."""
    try:
        table = tomllib.loads(path.read_text())
        suite = Suite.model_validate(table)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a readable file; 'bench' takes a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML ({error})") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, Suite)}") from error
    beside = path.parent / suite.base
    return suite.model_copy(update={"base": str(beside)}) if beside.is_file() else suite


DECISION = ("beta", "evidence", "rule")
# A method that starts at the initial model uses only the names of a decision, so any decision works.
# This one is part of the keys of published cells and must not change with the presets.
ANY_DECISION: Mapping[str, Any] = {"beta": 0.3, "evidence": "all", "rule": "prefix"}
GIVEN = ("aggregate", "epochs", "after", "probe")  # passed by the harness, not by a suite


# The names of selections in the keys of cells. They must never change: published cells contain them.
KEY_NAMES = {
    "selective": "Selective",
    "every": "Every",
    "everything": "Everything",
    "compact": "Compact",
}


def selection_table(selection: Selection) -> dict[str, Any]:
    """Return a selection as it appears in the key of a cell."""
    table = to_table(selection)
    return {"name": KEY_NAMES[table.pop("kind")], **table}


@dataclass(frozen=True)
class ResolvedMethod:
    """A method with all its options. ``label`` is only for people."""

    name: str
    label: str = field(compare=False)
    plan: tuple[tuple[str, Any], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    selection: Selection | None = None  # None: no history is needed
    batches: str = "history"  # that clients draw, here and in the retraining that distances are measured to

    @property
    def begins_at_rollback(self) -> bool:
        """Whether the method starts at the rollback round with these settings."""
        row = names.METHODS.get(self.name)
        return row is not None and row.begins_at_rollback(dict(self.settings))

    def to_table(self) -> dict[str, Any]:
        """Everything that determines it, as plain values; newer settings only if they change anything."""
        kept = selection_table(self.selection) if self.selection else None
        row = names.METHODS.get(self.name)
        added, untold, version = (row.added, row.batches, row.version) if row else ({}, "history", 1)
        new = {name for name, value in added.items() if dict(self.settings).get(name) == value}
        settings = {name: value for name, value in self.settings if name not in new}
        table: dict[str, Any] = {"name": self.name, "plan": dict(self.plan), "settings": settings}
        table["history"] = kept
        table |= {} if version == 1 else {"version": version}
        return table if self.batches == untold else {**table, "batches": self.batches}


POISONED = ResolvedMethod("poisoned", "poisoned")


def resolve(choice: MethodChoice) -> ResolvedMethod:
    """Complete a method's options from its preset and its function's defaults; unknown ones are errors."""
    batches = choice.batches or "fresh"
    names.look_up("kind of batches", batches, dict.fromkeys(names.BATCHES))
    if choice.method == POISONED.name:
        return replace(POISONED, batches=batches)
    row = names.look_up("method", choice.method, names.METHODS)
    own = {name: value for name, value in defaults(row.function).items() if name not in GIVEN}
    decided = row.plan if row.begins_at_rollback(choice.options) else ANY_DECISION
    known = [*own, *(name for name in DECISION if name in decided), *OPTIONAL]
    if unknown := [name for name in choice.options if name not in known]:
        raise ConfigError(f"method {choice.method!r} has no option {unknown[0]!r}; it has {', '.join(known)}")
    plan = {name: choice.options.get(name, value) for name, value in decided.items()}
    plan |= {name: value for name, value in choice.options.items() if name in OPTIONAL}
    settings = {name: choice.options.get(name, row.settings.get(name, value)) for name, value in own.items()}
    return ResolvedMethod(
        choice.method,
        choice.label or _label(choice),
        tuple(plan.items()),
        tuple(settings.items()),
        _selection(choice, row.selection),
        batches,
    )


def _selection(choice: MethodChoice, kept: Selection) -> Selection:
    what, kind = f"the history of method {choice.method!r}", type(kept)
    return cast(Selection, names.call(what, kind, settings={**asdict(kept), **choice.history}))


def _label(choice: MethodChoice) -> str:
    """Return the method's name with the options that were given."""
    options = [f"{name}={value}" for name, value in {**choice.options, **choice.history}.items()]
    return f"{choice.method} {' '.join(options)}".rstrip()


def defaults(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the defaults of a function's keyword-only parameters."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
