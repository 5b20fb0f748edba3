"""From a suite to its cells: every combination of its lists, each with everything that determines it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from fedcrab.errors import ConfigError, FedcrabError
from fedcrab.experiment.cell_cache import identity, key_of
from fedcrab.experiment.config import Config, HistoryConfig, read_table, settings, validated
from fedcrab.experiment.names import REFERENCE
from fedcrab.experiment.suite import POISONED, AxisValue, MethodChoice, ResolvedMethod, Suite, resolve
from fedcrab.name_value import put

ALWAYS = ("poisoned", REFERENCE)  # every other cell of a training is compared with these
Labels = tuple[tuple[str, str | float], ...]  # axis -> value, as tables show it
Changes = Mapping[str, Any]  # dotted name of a setting -> value


@dataclass(frozen=True)
class Cell:
    """One experiment of the matrix: a training, and a method that recovers from it."""

    config: Config  # its history keeps everything; the method may see only a part
    method: ResolvedMethod
    choice: MethodChoice = field(compare=False)  # the method as it was asked for
    membership: bool
    labels: Labels = field(default=(), compare=False)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the result."""
        return identity(self.config, self.method, membership=self.membership)

    @cached_property
    def key(self) -> str:
        """The hash of everything that determines the result."""
        return key_of(self.identity)

    @cached_property
    def training(self) -> str:
        """The hash of everything that determines the training; the cells of all methods share it."""
        return key_of(identity(self.config, POISONED, membership=self.membership))

    @property
    def setting(self) -> Labels:
        """The labels of all axes except method and seed."""
        return tuple((axis, label) for axis, label in self.labels if axis not in ("method", "seed"))


def expand(suite: Suite) -> list[Cell]:
    """Return every cell of a suite once; the cells of a training are adjacent."""
    methods = _methods(suite)
    cells: dict[tuple[str, str], Cell] = {}
    for config, labels in _configs(suite):
        for choice, method in methods:
            named = (*labels, ("method", method.label), ("seed", config.seed))
            cell = Cell(config, method, choice, suite.membership, named)
            with named_cell(named):
                cells.setdefault((cell.key, method.label), cell)
    return list(cells.values())


@contextmanager
def named_cell(labels: Labels) -> Iterator[None]:
    """Turn any error of a cell into a ``ConfigError`` that names the cell."""
    try:
        yield
    except (FedcrabError, TypeError, ValueError, OverflowError) as error:
        name = ", ".join(f"{axis} {value}" for axis, value in labels)
        raise ConfigError(f"cell ({name}): {error}") from error


def _methods(suite: Suite) -> list[tuple[MethodChoice, ResolvedMethod]]:
    named = [m if isinstance(m, MethodChoice) else _parse_method(m) for m in suite.methods]
    named = [m.model_copy(update={"batches": m.batches or suite.batches}) for m in named]
    standard = (MethodChoice(method=name, batches=suite.batches) for name in ALWAYS)
    always = [(c, resolve(c)) for c in standard]
    standing = [method for _, method in always]
    methods = [*always, *((c, m) for c, m in ((c, resolve(c)) for c in named) if m not in standing)]
    labels = [method.label for _, method in methods]
    if twice := [label for place, label in enumerate(labels) if label in labels[:place]]:
        raise ConfigError(f"two methods are called {twice[0]!r}; give one of them another label")
    if suite.reference not in labels:
        raise ConfigError(f"the reference {suite.reference!r} is not among the suite's methods")
    return methods


def _parse_method(text: str) -> MethodChoice:
    """Return a method written as one line: its name, then options such as ``beta=0.1``."""
    if not text.strip():
        raise ConfigError('a method has no name; write methods as in methods = ["crab-paper"]')
    method, *options = text.split()
    return MethodChoice(method=method, label=text, **settings(options))


def _configs(suite: Suite) -> Iterator[tuple[Config, Labels]]:
    base = read_table(suite.base)
    for name, value in suite.set.items():
        put(base, name, value)
    axes = _axes(suite, base)
    for chosen, seed in product(list(product(*axes.values())), suite.seeds):
        table = _copied(base)
        for _, changes in chosen:
            for name, value in changes.items():
                put(table, name, value)
        put(table, "seed", seed)
        config = validated(suite.base, table).model_copy(update={"history": HistoryConfig(name="everything")})
        yield config, _labelled(config, dict(zip(axes, (label for label, _ in chosen), strict=True)))


def _labelled(config: Config, labels: Mapping[str, str | float]) -> Labels:
    """Return the label of each axis; for axes that the suite does not list, from the configuration."""
    clients = config.clients.count
    if config.attack is None:
        raise ConfigError("a suite needs attacks, and its base has none; list some under attacks")
    if not 0 < round(config.attack.fraction * clients) < clients:
        raise ConfigError(
            f"a fraction of {config.attack.fraction:g} of {clients} clients leaves no attackers or no "
            "honest clients; choose a value in between"
        )
    own: dict[str, str | float] = {
        "dataset": config.data.name,
        "model": config.model,
        "attack": config.attack.name,
        "fraction": config.attack.fraction,
        "partition": config.clients.partition.name,
    }
    return tuple({**own, **labels}.items())


def _axes(suite: Suite, base: Mapping[str, Any]) -> dict[str, Sequence[tuple[str | float, Changes]]]:
    """Return each axis that the suite lists, with its values as (label, changes)."""
    axes: dict[str, Sequence[tuple[str | float, Changes]]] = {
        "dataset": _values(suite.datasets, "data.name", base),
        "model": _values(suite.models, "model", base),
        "attack": _values(suite.attacks, "attack.name", base),
        "fraction": [(f, {"attack.fraction": f}) for f in suite.fractions],
        "partition": _values(suite.partitions, "clients.partition.name", base),
    }
    for name, values in suite.vary.items():
        axes[name] = [(v if isinstance(v, int | float) else str(v), {name: v}) for v in values]
    return {axis: values for axis, values in axes.items() if values}


def _values(
    choices: Sequence[str | AxisValue], place: str, base: Mapping[str, Any]
) -> list[tuple[str | float, Changes]]:
    """Return the values of an axis; if two share a name and have no label, their settings are the label."""
    values = [AxisValue(name=choice) if isinstance(choice, str) else choice for choice in choices]
    names = [value.label or value.name for value in values]
    found: dict[str, Changes] = {}
    for value, name in zip(values, names, strict=True):
        own = {**(value.settings or {}), **value.set} if names.count(name) > 1 and not value.label else {}
        label = " ".join([name, *(f"{key}={setting}" for key, setting in own.items())])
        changes = _chosen(value, place, base)
        if found.setdefault(label, changes) != changes:
            raise ConfigError(f"two values of {place} are both called {label!r}; give one of them a label")
    return list(found.items())


def _chosen(choice: AxisValue, place: str, base: Mapping[str, Any]) -> Changes:
    """Return the changes for a value of an axis: name, settings (instead of the base's), and ``set``."""
    parent, dot, _ = place.rpartition(".")
    changes: dict[str, Any] = {place: choice.name}
    if parent in ("attack", "clients.partition"):
        same = _found(base, place) == choice.name
        if choice.settings is not None or not same:
            changes[f"{parent}{dot}settings"] = choice.settings or {}
    elif choice.settings is not None:
        raise ConfigError(f"{choice.name!r} has no settings; put them in set")
    return {**changes, **choice.set}


def _found(table: Any, place: str) -> Any:
    for name in place.split("."):
        table = table.get(name) if isinstance(table, Mapping) else None
    return table


def _copied(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copied(v) if isinstance(v, Mapping) else v for name, v in table.items()}
