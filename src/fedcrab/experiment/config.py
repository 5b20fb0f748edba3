"""A training as a frozen value, and the TOML it is written in."""

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
    """A part of a configuration: frozen, and closed to names it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NamedChoice(ConfigSection):
    """Something from a table of names, with its settings."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)


class Partition(NamedChoice):
    """How the examples are spread over the clients."""

    name: str = "iid"


class Aggregation(NamedChoice):
    """The rule by which updates become a step."""

    name: str = "fedavg"


class HistoryConfig(NamedChoice):
    """What the history keeps: of simulated clients every update in 4 bits, which nobody's privacy forbids."""

    name: str = "compact"


class Data(ConfigSection):
    """Which examples there are, and how many the server and each client hold."""

    name: str = "digits"
    probe: int = Field(default=200, ge=1)  # training examples that only the server has
    examples_per_client: int | None = Field(default=None, ge=1)  # at most; None: all of its part


class Clients(ConfigSection):
    """Who the clients are, and who of them answers in a round."""

    count: int = Field(default=20, ge=1)
    partition: Partition = Partition()
    share: float = Field(default=1.0, gt=0, le=1)  # of the clients asked in each round
    drop_out: float = Field(default=0.0, ge=0, lt=1)  # probability that one of them does not answer


class LocalConfig(ConfigSection):
    """What a client does in a round."""

    learning_rate: float = Field(default=0.005, ge=0)
    batch: int = Field(default=64, ge=1)
    epochs: int = Field(default=5, ge=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)


class Attack(NamedChoice):
    """Who attacks, how, and when."""

    fraction: float = Field(default=0.25, ge=0, le=1)  # of the clients, drawn by the seed
    start: int = Field(default=0, ge=0)  # the first round
    share: float = Field(default=1.0, ge=0, le=1)  # of the rounds from there on
    rounds: tuple[int | str, ...] | None = None  # the only ones: [30], or [3, "10-14"]


class Config(ConfigSection):
    """A whole training."""

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
        """As one line of text, to be kept with a history; without the device where it is a processor."""
        return self.model_dump_json(exclude={"device"} if self.device == "cpu" else None)

    @classmethod
    def from_json(cls, text: str) -> Config:
        """What :meth:`to_json` wrote."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(f"the configuration kept with the history: {explain(error)}") from error


def presets() -> dict[str, str]:
    """The configurations that come with fedcrab, as TOML."""
    files = resources.files("fedcrab.experiment").joinpath("presets").iterdir()
    return {f.name.removesuffix(".toml"): f.read_text() for f in sorted(files, key=lambda f: f.name)}


def load_config(source: str, changes: Sequence[str] = ()) -> Config:
    """The configuration in a TOML file or of a preset, with changes such as ``attack.fraction=0.5``."""
    table = read_table(source)
    for change in changes:
        _change(table, change)
    return validated(source, table)


def read_table(source: str) -> dict[str, Any]:
    """The TOML of a file or of a preset, as it stands."""
    return _parse(source, _text(source))


def validated(source: str, table: Mapping[str, Any]) -> Config:
    """The configuration that a table describes."""
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
    """Settings such as ``beta=0.1``, as a table."""
    table: dict[str, Any] = {}
    for change in changes:
        _change(table, change)
    return table


def _change(table: dict[str, Any], change: str) -> None:
    """Put one ``a.b=value`` into the table."""
    name, value = split_pair(change, option="--set", example="attack.fraction=0.5")
    put(table, name, toml_value(value))


def explain(error: ValidationError, whole: type[BaseModel] = Config) -> str:
    """Return the first problem of a configuration, or of another ``whole``, as one sentence."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"no setting {place!r}; known here are {', '.join(_known_at(whole, first['loc'][:-1]))}"
    return f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {first['input']!r}"


def _known_at(part: Any, location: Sequence[int | str]) -> Mapping[str, Any]:
    """The names that can stand at a place of the configuration."""
    for name in location:
        field = part.model_fields.get(str(name))
        kinds = getattr(field.annotation, "__args__", [field.annotation]) if field else []
        part = next((kind for kind in kinds if _is_part(kind)), part)
    names: Mapping[str, Any] = part.model_fields
    return names


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, ConfigSection)
