"""Backdoors: attackers train on examples that carry a trigger and a false label.

Gu et al., "BadNets", 2017; Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020 (boosting,
model replacement); Xie et al., "DBA: Distributed Backdoor Attacks against Federated Learning", ICLR 2020.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.malicious_fleet import Attackers, CraftedFleet, DataFleet, Examples, poison_examples
from fedcrab.attack.trigger import PATCH, Trigger, plant
from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId, Fleet


def boosted(fleet: Fleet, attackers: Attackers, *, factor: float) -> CraftedFleet:
    """Return a fleet whose attackers send ``factor`` times their update, so that averaging keeps its effect.

    1 changes nothing; about n divided by the number of attackers replaces the model. Raises ``ConfigError``
    unless ``factor`` is finite and more than 0.
    """
    if not (np.isfinite(factor) and factor > 0):
        raise ConfigError(f"boost must be more than 0, got {factor}")
    return CraftedFleet(fleet, attackers, lambda scene: scene.own.vectors.astype(np.float64) * factor)


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
    """Return a fleet whose attackers plant a backdoor (BadNets).

        (x, y) → (stamp(x), target) on a fraction ``poisoned`` of an attacker's examples;  it sends boost · u

    ``labels`` says which examples are poisoned and what label they get:

    - ``fixed``: every poisoned example gets ``target``.
    - ``random``: each gets a class drawn from all but its own; needs ``classes``, the number of classes.
    - ``all-of-one-class``: every example of class ``source`` is poisoned and gets ``target``; ``poisoned`` is
      not used.

    ``trigger`` is the patch. ``boost`` 1 sends the trained update, about n replaces the model. Raises
    ``ConfigError`` for impossible settings, and for a fleet that does not expose its clients' examples.
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
    """Raise ``ConfigError`` unless ``poisoned`` is more than 0 and at most 1."""
    if not 0 < poisoned <= 1:
        raise ConfigError(f"poisoned must be more than 0 and at most 1, got {poisoned}")


def draw_rows(rng: np.random.Generator, n: int, poisoned: float) -> NDArray[np.int64]:
    """Return the sorted positions of round(poisoned × n) of n examples, half to even."""
    return np.sort(rng.permutation(n)[: round(poisoned * n)])


def _other_classes(rng: np.random.Generator, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Return, per label, a class drawn from the other classes."""
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


def dba(
    fleet: DataFleet,
    attackers: Attackers,
    *,
    parts: int = 4,
    target: int = 0,
    poisoned: float = 0.5,
    trigger: Trigger = PATCH,
    boost: float = 1.0,
) -> DataFleet:
    """Return a fleet whose attackers plant one backdoor together, each with one part of the trigger (DBA).

        attacker number a (in the order of ids) trains on (stamp(x, part a mod parts), target)

    on a fraction ``poisoned`` of its examples, and sends ``boost`` times its update. Success is measured with
    the whole trigger, ``stamp(images, trigger)``, on which no attacker has trained. The part of an attacker
    that does not act is missing from that round. Raises ``ConfigError`` as :func:`backdoor` does.
    """
    check_poisoned(poisoned)
    pieces = trigger.cut(parts)
    ordered = sorted(attackers.clients)

    def poison(client: ClientId, examples: Examples) -> Examples:
        rows = draw_rows(rng_for(attackers.seed, "dba", client), len(examples[1]), poisoned)
        return plant(examples, rows, target, pieces[ordered.index(client) % parts])

    return boosted(poison_examples(fleet, attackers, poison), attackers, factor=boost)
