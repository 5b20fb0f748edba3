"""A method with its options, checked and complete: the decision, its own settings, the history it sees."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from fedcrab.errors import ConfigError
from fedcrab.experiment import names
from fedcrab.history.selection import Selection
from fedcrab.suite.description import MethodChoice

DECISION = ("beta", "evidence", "rule")
HEDGE = "unfound"  # of the decision too, but no part of it unless asked for
GIVEN = ("aggregate", "epochs", "after")  # by the harness, not by a suite


@dataclass(frozen=True)
class Resolved:
    """A method, all options told. ``label`` is for people and determines nothing."""

    name: str
    label: str = field(compare=False)
    plan: tuple[tuple[str, Any], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    selection: Selection | None = None  # None: no history is needed

    def to_table(self) -> dict[str, Any]:
        """All that determines it, as plain values."""
        kept = {"name": type(self.selection).__name__, **asdict(self.selection)} if self.selection else None
        return {"name": self.name, "plan": dict(self.plan), "settings": dict(self.settings), "history": kept}


POISONED = Resolved("poisoned", "poisoned")


def resolve(choice: MethodChoice) -> Resolved:
    """Complete a method's options from its preset and its function's defaults; refuse unknown ones."""
    if choice.method == POISONED.name:
        return POISONED
    row = names.look_up("method", choice.method, names.METHODS)
    own = {name: value for name, value in defaults(row.function).items() if name not in GIVEN}
    known = [*own, *(name for name in DECISION if name in row.plan), HEDGE]
    if unknown := [name for name in choice.options if name not in known]:
        raise ConfigError(f"method {choice.method!r} has no option {unknown[0]!r}; it has {', '.join(known)}")
    plan = {name: choice.options.get(name, value) for name, value in row.plan.items()}
    plan |= {name: value for name, value in choice.options.items() if name == HEDGE}
    settings = {name: choice.options.get(name, row.settings.get(name, value)) for name, value in own.items()}
    return Resolved(
        choice.method,
        choice.label or _label(choice),
        tuple(plan.items()),
        tuple(settings.items()),
        _selection(choice, row.selection),
    )


def _selection(choice: MethodChoice, kept: Selection) -> Selection:
    what, kind = f"the history of method {choice.method!r}", type(kept)
    return cast(Selection, names.call(what, kind, settings={**asdict(kept), **choice.history}))


def _label(choice: MethodChoice) -> str:
    """The name with whatever was asked for besides."""
    told = [f"{name}={value}" for name, value in {**choice.options, **choice.history}.items()]
    return f"{choice.method} {' '.join(told)}".rstrip()


def defaults(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The keyword-only parameters of a function that have a default."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
