"""The tables of names. A new rule, attack or partition is one row here.

Methods and detectors are rows in ``recover/methods.py`` and ``detect/__init__.py``, because Flower and the
certificate need them without a simulator; this module only refers to them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from fedcrab import aggregate, attack
from fedcrab.detect import DETECTORS as DETECTORS
from fedcrab.errors import ConfigError
from fedcrab.experiment.config import Config
from fedcrab.history import Compact, Every, Everything, Selective
from fedcrab.recover.methods import METHODS as METHODS
from fedcrab.recover.methods import REFERENCE as REFERENCE
from fedcrab.simulate import partition
from fedcrab.simulate.data import SIZES

RULES: Mapping[str, Callable[..., Any]] = {
    "fedavg": aggregate.fedavg,
    "median": aggregate.median,
    "trimmed-mean": aggregate.trimmed_mean,
    "krum": aggregate.krum,
    "multi-krum": aggregate.multi_krum,
    "geometric-median": aggregate.geometric_median,
    "clipped-mean": aggregate.clipped_mean,
}
ATTACKS: Mapping[str, Callable[..., Any]] = {
    "backdoor": attack.backdoor,
    "dba": attack.dba,
    "pgd": attack.pgd,
    "neurotoxin": attack.neurotoxin,
    "noise-trim": attack.noise_trim,
    "fang-trim": attack.fang_trim,
    "fang-krum": attack.fang_krum,
    "lie": attack.lie,
    "min-max": attack.min_max,
    "min-sum": attack.min_sum,
    "label-flip": attack.label_flip,
    "sign-flip": attack.sign_flip,
    "ipm": attack.ipm,
    "evade": attack.evade,
}
PARTITIONS: Mapping[str, Callable[..., Any]] = {
    "iid": partition.iid,
    "dirichlet": partition.dirichlet,
    "shards": partition.shards,
    "power-law": partition.power_law,
}
SELECTIONS: Mapping[str, Callable[..., Any]] = {
    "selective": Selective,
    "every": Every,
    "everything": Everything,
    "compact": Compact,
}
BATCHES = ("fresh", "history")  # which batches a simulated client draws in a recovery: new ones, or the old
Thing = TypeVar("Thing")


def look_up(kind: str, name: str, table: Mapping[str, Thing]) -> Thing:
    """Return the entry of a table; raise ``ConfigError`` with the known names if there is none."""
    if name not in table:
        raise ConfigError(f"no {kind} {name!r}; there are {', '.join(table)}")
    return table[name]


def check_names(config: Config) -> None:
    """Raise ``ConfigError`` if a configuration has unknown names or settings; does not import torch."""
    look_up("data set", config.data.name, SIZES)
    for kind, choice, table in (
        ("partition", config.clients.partition, PARTITIONS),
        ("rule", config.aggregation, RULES),
        ("attack", config.attack, ATTACKS),
        ("history", config.history, SELECTIONS),
    ):
        if choice is not None:
            check_settings(
                f"{kind} {choice.name!r}", look_up(kind, choice.name, table), dict(choice.settings)
            )


def call(
    what: str, function: Callable[..., Thing], *given: Any, settings: Mapping[str, Any], **fixed: Any
) -> Thing:
    """Call a function of a table with settings from a file; raise ``ConfigError`` for an unknown setting."""
    check_settings(what, function, settings)
    try:
        return function(*given, **fixed, **settings)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}") from error


def check_settings(
    what: str, function: Callable[..., Any], settings: Mapping[str, Any], *, passed: Collection[str] = ()
) -> None:
    """Raise ``ConfigError`` for a setting that a function does not have; the message lists those it has.

    ``passed`` are parameters that are not settings, because the caller passes them.
    """
    known = [name for name in setting_names(function) if name not in passed]
    if unknown := [name for name in settings if name not in known]:
        raise ConfigError(f"{what} has no setting {unknown[0]!r}; {_listed(known)}")


def setting_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's settings: its keyword-only parameters, or the fields of a class."""
    parameters = inspect.signature(function).parameters.values()
    if inspect.isclass(function):
        return [p.name for p in parameters]
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("clients", "seed")]


def _listed(names: list[str]) -> str:
    return f"its settings are {', '.join(names)}" if names else "it has no settings"
