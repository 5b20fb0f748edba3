"""The detector ``taught``: who taught the model what the audit found, or what an operator brought."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrab.audit.attribution import Attribution, attribute
from fedcrab.audit.flat_model import FlatModel, Images, Labels
from fedcrab.audit.timeline import lift
from fedcrab.audit.trigger_inversion import Inversion
from fedcrab.detect import Detection, Suspicion
from fedcrab.history import History
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

SURE = 0.99  # the most that is claimed; docs/forensics.md has how often it was right
CLEARLY = 2.0  # strength of the names that make a trigger of a mask which is no sure sign by itself
DOUBTED = 0.95  # what is claimed then
LIFT = 0.25  # of a certain trigger: a model that says its class anyway has a small mask without any trigger
AGREE = 0.6  # strength that each half of what was brought must have alone, where all of it names somebody
SHOWN = 160  # stamped examples: more of them change nothing
RANKING = "Nobody stands out clearly: the scores are a ranking, not names."


def taught_trigger(
    history: History, flat: FlatModel, trigger: Inversion, x: Images, y: Labels
) -> tuple[Detection, Attribution]:
    """Who taught the trigger that an audit found, from the probe examples it was found with.

    Where the trigger is certain, who taught it are those whose effect on it nothing else explains. Where the
    audit is less sure, the clients must stand out as well; where it is in doubt, twice as clearly.
    """
    plain = np.asarray(x)[_some(np.asarray(y) != trigger.label)]
    label = np.full(len(plain), trigger.label, np.int64)
    genuine = _genuine(x, y, label)
    stamped = trigger.stamp(plain)
    found = attribute(history, flat, stamped, label, plain=plain, genuine=genuine)
    clearly = trigger.suspicious and found.cut.strength >= CLEARLY
    named = found.named if trigger.planted or clearly else ()
    if trigger.certain and lift(flat, history.final_model(), plain, stamped, trigger.label) >= LIFT:
        named = found.named_for_certain_trigger or named
    what = f"taught the trigger for class {trigger.label}"
    sure = trigger.confidence or DOUBTED
    return _detection(found, found.unexplained, named, what, sure=sure), found


def taught_examples(
    history: History, flat: FlatModel, bad: Images, labels: Labels, x: Images, y: Labels
) -> tuple[Detection, Attribution]:
    """Who taught the model to give these labels to these examples; ``x``, ``y`` are the server's own.

    Names need agreement: each half of the examples alone must single clients out too. So one example names
    nobody, and natural mistakes, which have no common teacher, do so rarely.
    """
    plain = np.asarray(x)[_some(~np.isin(np.asarray(y), np.unique(labels)))]

    def part_of(some: slice) -> Attribution:
        own = labels[some]
        return attribute(history, flat, bad[some], own, plain=plain, genuine=_genuine(x, y, own))

    found = part_of(slice(None))
    named = found.named if len(bad) > 1 else ()
    if named and any(part_of(slice(i, None, 2)).cut.strength < AGREE for i in (0, 1)):
        named = ()
    return _detection(found, found.scores, named, "taught what was brought", sure=SURE), found


def _some(which: NDArray[np.bool_]) -> NDArray[np.intp]:
    places = np.flatnonzero(which)
    return rng_for(0, "taught", len(places)).permutation(places)[:SHOWN]


def _genuine(x: Images, y: Labels, labels: Labels) -> tuple[Images, Labels]:
    """Examples that really are of the labels, as often as each is taught."""
    rows = [np.flatnonzero(np.asarray(y) == label) for label in labels]
    some = [own[i % len(own)] for i, own in enumerate(rows) if len(own)][:SHOWN]
    return np.asarray(x)[some], np.asarray(y)[some].astype(np.int64)


def _detection(
    found: Attribution, ranked: Matrix64, named: tuple[ClientId, ...], what: str, *, sure: float
) -> Detection:
    suspicions = {
        client: Suspicion(f"{what}, from round {found.onset(client)} on", min(sure, SURE)) for client in named
    }
    scores = {c: max(float(s), 0.0) for c, s in zip(found.clients, ranked, strict=True)}
    strength = max(found.cut.strength, 1.0) if named else min(found.cut.strength, 0.99)
    return Detection("taught", len(found.rounds), scores, suspicions, strength, () if named else (RANKING,))
