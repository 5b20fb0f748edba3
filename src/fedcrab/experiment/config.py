"""The configuration of a training: a frozen value, read from TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedcrab.errors import ConfigError
from fedcrab.name_value import put, split_pair, toml_value


class ConfigSection(BaseModel):
    """A part of a configuration; frozen, and unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NamedChoice(ConfigSection):
    """A name from one of the tables of names, with its settings."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)


class Partition(NamedChoice):
    """How the examples are distributed over the clients."""

    name: str = "iid"


class Aggregation(NamedChoice):
    """The aggregation rule."""

    name: str = "fedavg"


class HistoryConfig(NamedChoice):
    """What the history keeps. The default for simulated clients is every update in 4 bits."""

    name: str = "compact"


class Data(ConfigSection):
    """The data set, and how many examples the server and each client have."""

    name: str = "digits"
    probe: int = Field(default=200, ge=1)  # training examples that only the server has
    examples_per_client: int | None = Field(default=None, ge=1)  # at most; None: all


class Clients(ConfigSection):
    """The clients, and which of them take part in a round."""

    count: int = Field(default=20, ge=1)
    partition: Partition = Partition()
    share: float = Field(default=1.0, gt=0, le=1)  # of the clients asked in each round
    drop_out: float = Field(default=0.0, ge=0, lt=1)  # probability that one of them does not answer


class LocalConfig(ConfigSection):
    """The local training of a client."""

    learning_rate: float = Field(default=0.005, ge=0)
    batch: int = Field(default=64, ge=1)
    epochs: int = Field(default=5, ge=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)


class Attack(NamedChoice):
    """The attack: its clients, its kind and its rounds."""

    fraction: float = Field(default=0.25, ge=0, le=1)  # of the clients, drawn by the seed
    start: int = Field(default=0, ge=0)  # the first round
    share: float = Field(default=1.0, ge=0, le=1)  # of the rounds from there on
    rounds: tuple[int | str, ...] | None = None  # the only rounds with an attack: [30], or [3, "10-14"]


class Config(ConfigSection):
    """The configuration of a whole training."""

    seed: int = Field(default=0, ge=0)
    rounds: int = Field(default=40, ge=1)
    model: str = "mlp"
    device: Literal["cpu", "cuda", "mps"] = "cpu"  # where clients train
    data: Data = Data()
    clients: Clients = Clients()
    local: LocalConfig = LocalConfig()
    aggregation: Aggregation = Aggregation()
    attack: Attack | None = None
    history: HistoryConfig = HistoryConfig()

    def to_json(self) -> str:
        """Return one line of JSON for the notes of a history; the device is left out if it is the CPU."""
        return self.model_dump_json(exclude={"device"} if self.device == "cpu" else None)

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Return the configuration that :meth:`to_json` wrote."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(f"the configuration in the history's notes: {explain(error)}") from error


def presets() -> dict[str, str]:
    """Return the TOML text of each preset that comes with fedcrab."""
    files = resources.files("fedcrab.experiment").joinpath("presets").iterdir()
    return {f.name.removesuffix(".toml"): f.read_text() for f in sorted(files, key=lambda f: f.name)}


def load_config(source: str, changes: Sequence[str] = ()) -> Config:
    """Return the configuration of a TOML file or a preset.

    ``changes`` are settings such as ``attack.fraction=0.5``. Raises ``ConfigError`` if ``source`` is neither
    a readable file nor a preset, and for unknown or invalid settings.
    """
    table = read_table(source)
    for change in changes:
        _change(table, change)
    return validated(source, table)


def read_table(source: str) -> dict[str, Any]:
    """Return the TOML table in a file or of a preset."""
    return _parse(source, _text(source))


def validated(source: str, table: Mapping[str, Any]) -> Config:
    """Return the configuration in a table; raises ``ConfigError`` with the first problem."""
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error)}") from error


def _text(source: str) -> str:
    known = presets()
    if source in known:
        return known[source]
    try:
        return Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{source}: neither a readable file nor a preset; presets are {', '.join(known)}"
        ) from error


def _parse(source: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not TOML ({error})") from error


def settings(changes: Sequence[str]) -> dict[str, Any]:
    """Return settings such as ``beta=0.1`` as a table."""
    table: dict[str, Any] = {}
    for change in changes:
        _change(table, change)
    return table


def _change(table: dict[str, Any], change: str) -> None:
    """Put one ``a.b=value`` into the table."""
    name, value = split_pair(change, option="--set", example="attack.fraction=0.5")
    put(table, name, toml_value(value))


def explain(error: ValidationError, whole: type[BaseModel] = Config) -> str:
    """Return the first problem of a configuration, or of another model ``whole``, as one sentence."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"no setting {place!r}; known here are {', '.join(_known_at(whole, first['loc'][:-1]))}"
    return f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {first['input']!r}"


def _known_at(part: Any, location: Sequence[int | str]) -> Mapping[str, Any]:
    """Return the names that are valid at a place of the configuration."""
    for name in location:
        field = part.model_fields.get(str(name))
        kinds = getattr(field.annotation, "__args__", [field.annotation]) if field else []
        part = next((kind for kind in kinds if _is_part(kind)), part)
    names: Mapping[str, Any] = part.model_fields
    return names


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, ConfigSection)
