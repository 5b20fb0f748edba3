"""A suite as it is written in TOML: a base configuration, and lists that span a matrix."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedcrab.errors import ConfigError
from fedcrab.experiment.config import Part

MEASURES = {
    "ta": "TA %",
    "asr": "ASR %",
    "asr_with_target": "ASR %, target class in",
    "misr": "MISR %",
    "misr_balanced_accuracy": "MISR balanced %",
    "misr_auc": "MISR AUC",
    "rollback_round": "rollback",
    "rounds": "rounds",
    "client_rounds": "client-rounds",
    "sample_gradients": "sample-gradients",
    "seconds": "s",
    "seconds_a_round": "s a round",
    "bytes": "history, bytes",
    "distance": "distance",
}
SHARES = ("ta", "asr", "asr_with_target", "misr", "misr_balanced_accuracy")  # shown in per cent


class Choice(Part):
    """One value of an axis: a name, its settings, and whatever else goes with it."""

    name: str
    label: str = ""
    settings: dict[str, Any] | None = None  # of an attack or a partition
    set: dict[str, Any] = Field(default_factory=dict)  # any other settings of the configuration


class MethodChoice(BaseModel):
    """A recovery method with options: of the decision such as ``beta``, and its own such as ``cap``."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    method: str
    label: str = ""
    history: dict[str, Any] = Field(default_factory=dict)  # other settings of the selection it recovers from

    @property
    def options(self) -> dict[str, Any]:
        """What is left besides name, label and history."""
        return dict(self.model_extra or {})


class Suite(Part):
    """A matrix of experiments: every combination of what the lists name; an empty list leaves the base's."""

    base: str = "digits"  # a preset, or a TOML file beside the suite
    set: dict[str, Any] = Field(default_factory=dict)
    datasets: list[str | Choice] = Field(default_factory=list)
    models: list[str | Choice] = Field(default_factory=list)
    attacks: list[str | Choice] = Field(default_factory=list)
    fractions: list[float] = Field(default_factory=list)
    partitions: list[str | Choice] = Field(default_factory=list)
    vary: dict[str, list[Any]] = Field(
        default_factory=dict
    )  # any setting as an axis: "clients.count" = [5, 10]
    methods: list[str | MethodChoice] = Field(default_factory=list)
    seeds: list[int] = Field(default_factory=lambda: [0])
    membership: bool = False  # MISR too: a shadow training for every training
    reference: str = "retrain"  # the method that others are tested against
    measures: list[str] = Field(default_factory=lambda: ["ta", "asr", "client_rounds", "seconds", "distance"])

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
    """The suite in a TOML file; its base is a preset or a file named from the suite's own place."""
    try:
        table = tomllib.loads(path.read_text())
        suite = Suite.model_validate(table)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a readable file; 'bench' takes a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML ({error})") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first(error)}") from error
    beside = path.parent / suite.base
    return suite.model_copy(update={"base": str(beside)}) if beside.is_file() else suite


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, in one sentence."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"no setting {place!r}; known are {', '.join(Suite.model_fields)}"
    return f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {first['input']!r}"
