"""DBA: the trigger cut into parts, one for each attacker, measured whole.

    attacker number a (in the order of ids) trains on (stamp(x, part a mod parts), target)

on a fraction `poisoned` of its examples and sends γ · u, γ = `boost`. Success is measured with the whole
trigger, ``stamp(images, trigger)``, which no attacker has ever trained on.
Xie et al., "DBA: Distributed Backdoor Attacks against Federated Learning", ICLR 2020.
An attacker that does not take part, or does not act, is honest, and its part is missing from that round.
"""

from __future__ import annotations

from fedcrab.attack.attackers import Attackers
from fedcrab.attack.backdoor import check_poisoned, draw_rows
from fedcrab.attack.boost import boosted
from fedcrab.attack.data_fleet import DataFleet, Examples, poison_examples
from fedcrab.attack.trigger import PATCH, Trigger, plant
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId


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
    """The fleet whose attackers plant one backdoor together, a part of the trigger each."""
    check_poisoned(poisoned)
    pieces = trigger.cut(parts)
    ordered = sorted(attackers.clients)

    def poison(client: ClientId, examples: Examples) -> Examples:
        rows = draw_rows(rng_for(attackers.seed, "dba", client), len(examples[1]), poisoned)
        return plant(examples, rows, target, pieces[ordered.index(client) % parts])

    return boosted(poison_examples(fleet, attackers, poison), attackers, factor=boost)
