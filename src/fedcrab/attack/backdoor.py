"""Backdoor (BadNets): some of an attacker's examples carry a trigger and a false label.

    (x, y) → (stamp(x), target) on a fraction `poisoned` of its examples;  sends γ · u

γ is `boost` (1 sends the trained update, about n replaces the model). Label modes:
`fixed` every poisoned example gets `target`; `random` each gets a class drawn from all but its own;
`all-of-one-class` every example of class `source` is poisoned and gets `target` (`poisoned` is not used).
Gu et al., "BadNets", 2017; Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020.
An attacker that does not take part, or does not act, is honest; rounds without honest clients need no care.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.attackers import Attackers
from fedcrab.attack.boost import boosted
from fedcrab.attack.data_fleet import DataFleet, Examples, poison_examples
from fedcrab.attack.trigger import PATCH, Trigger, plant
from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId

Labels = Literal["fixed", "random", "all-of-one-class"]


def backdoor(
    fleet: DataFleet,
    attackers: Attackers,
    *,
    target: int = 0,
    poisoned: float = 0.5,
    labels: Labels = "fixed",
    source: int | None = None,
    classes: int | None = None,
    trigger: Trigger = PATCH,
    boost: float = 1.0,
) -> DataFleet:
    """The fleet whose attackers plant a backdoor.

    Mode `random` needs ``classes``, mode `all-of-one-class` needs ``source``.
    """
    check_poisoned(poisoned)
    _check_labels(labels, target, source, classes)

    def poison(client: ClientId, examples: Examples) -> Examples:
        rng = rng_for(attackers.seed, "backdoor", client)
        if labels == "all-of-one-class":
            return plant(examples, np.flatnonzero(examples[1] == source), target, trigger)
        rows = draw_rows(rng, len(examples[1]), poisoned)
        if labels == "fixed":
            return plant(examples, rows, target, trigger)
        return plant(examples, rows, _other_classes(rng, examples[1][rows], classes or 0), trigger)

    return boosted(poison_examples(fleet, attackers, poison), attackers, factor=boost)


def check_poisoned(poisoned: float) -> None:
    """Refuse what is not a fraction."""
    if not 0 < poisoned <= 1:
        raise ConfigError(f"poisoned must be more than 0 and at most 1, got {poisoned}")


def draw_rows(rng: np.random.Generator, n: int, poisoned: float) -> NDArray[np.int64]:
    """round(poisoned × n) of n examples, half to even."""
    return np.sort(rng.permutation(n)[: round(poisoned * n)])


def _other_classes(rng: np.random.Generator, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """For each label a class drawn from the others."""
    return (labels + rng.integers(1, classes, len(labels))) % classes


def _check_labels(labels: str, target: int, source: int | None, classes: int | None) -> None:
    if labels not in get_args(Labels):
        raise ConfigError(f"labels must be one of {', '.join(get_args(Labels))}, got {labels!r}")
    if labels == "random" and (classes is None or classes < 2):
        raise ConfigError(f"labels='random' needs classes, 2 or more, got {classes}")
    if labels == "all-of-one-class" and (source is None or source == target):
        raise ConfigError(
            f"labels='all-of-one-class' needs a source other than target {target}, got {source}"
        )
