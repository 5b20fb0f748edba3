"""A second look at whom the ledger suspects, by what these clients teach the model.

Clients whose data are alike, and unlike the others', form a group as attackers do. Where the server can see
that they teach the classes it knows (audit/lessons.py), their data explain a division that is not clear.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fedcrab.detect.detection import Detection
from fedcrab.detect.ledger import COPIES
from fedcrab.rollback.warnings import join_ids
from fedcrab.types import ClientId

CLEAR = 1.4  # strength of a sign that stands, whatever the clients teach


def spare(
    found: Detection, teachers: Collection[ClientId], confirmed: Collection[ClientId] = ()
) -> Detection:
    """A detection in which suspects that teach stand apart without being named.

    Copies are left as they are, and so is a sign that is CLEAR, or one of whose suspects another detector
    has ``confirmed``.
    """
    spared = {c: s.reason for c, s in found.suspicions.items() if c in teachers and s.reason != COPIES}
    if not spared or found.strength >= CLEAR or {*confirmed} & {*found.suspicions}:
        return found
    left = {client: why for client, why in found.suspicions.items() if client not in spared}
    note = (
        f"Stand apart, but are not named: {join_ids(spared)} ({next(iter(spared.values()))}). They teach the "
        "model the classes that the server knows, as honest clients do."
    )
    return replace(
        found,
        suspicions=left,
        strength=found.strength if left else min(found.strength, 0.99),
        notes=(note, *found.notes),
        apart={**found.apart, **spared},
    )
