"""Label flipping: an attacker trains on mirrored labels.

    y → L − 1 − y

L (`classes`) the number of classes; all of its examples.
Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX Security 2020
(baseline).
An attacker that does not take part, or does not act, is honest; rounds without honest clients need no care.
"""

from __future__ import annotations

import numpy as np

from fedcrab.attack.attackers import Attackers
from fedcrab.attack.data_fleet import DataFleet, Examples, PoisonedDataFleet, poison_examples
from fedcrab.errors import ConfigError
from fedcrab.types import ClientId


def label_flip(fleet: DataFleet, attackers: Attackers, *, classes: int) -> PoisonedDataFleet:
    """The fleet whose attackers train on mirrored labels."""
    if classes < 2:
        raise ConfigError(f"classes must be 2 or more, got {classes}")

    def poison(client: ClientId, examples: Examples) -> Examples:
        images, labels = examples
        if np.any((labels < 0) | (labels >= classes)):
            raise ConfigError(
                f"client {client}: labels must be from 0 to {classes - 1}, "
                f"got {labels.min()} to {labels.max()}"
            )
        return images, classes - 1 - labels

    return poison_examples(fleet, attackers, poison)
