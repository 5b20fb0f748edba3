"""The recovery methods by name. A new one is one row here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedcrab.history import Every, Everything, Selective
from fedcrab.history.selection import Selection
from fedcrab.recover.crab import CRAB_PRESETS, crab
from fedcrab.recover.federaser import federaser
from fedcrab.recover.fedrecover import fedrecover
from fedcrab.recover.retrain import retrain
from fedcrab.recover.step import Step
from fedcrab.rollback import PRESETS


@dataclass(frozen=True)
class Method:
    """A recovery method: its function, how the rollback is decided, its own settings, what it needs."""

    function: Callable[..., Iterator[Step]]
    plan: Mapping[str, Any]  # evidence, rule, beta
    settings: Mapping[str, Any]
    selection: Selection  # the history that it was made for


METHODS: Mapping[str, Method] = {
    "retrain": Method(retrain, PRESETS["hardened"], {}, Selective()),
    "federaser": Method(federaser, PRESETS["hardened"], {}, Every(2)),
    "fedrecover": Method(fedrecover, PRESETS["hardened"], {}, Everything()),
    "crab-paper": Method(crab, PRESETS["paper"], CRAB_PRESETS["paper"], Selective()),
    "crab-hardened": Method(crab, PRESETS["hardened"], CRAB_PRESETS["hardened"], Selective()),
}
