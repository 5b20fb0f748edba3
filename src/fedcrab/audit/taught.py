"""The detector ``taught``: which clients taught the trigger of an audit, or the operator's examples."""

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

MAX_CONFIDENCE = 0.99  # docs/forensics.md reports how often it was right
CLEARLY = 2.0  # strength from which the cut confirms a trigger that the audit doubts
DOUBTED = 0.95  # confidence in that case
LIFT = 0.25  # least lift of a certain trigger: a model that prefers a class has a small mask for it anyway
AGREE = 0.6  # strength that each half of the operator's examples must have alone
SHOWN = 160  # stamped examples; more of them change nothing
RANKING = "No client stands out clearly: the scores are only a ranking."


def taught_trigger(
    history: History, flat: FlatModel, trigger: Inversion, x: Images, y: Labels
) -> tuple[Detection, Attribution]:
    """Return which clients taught the trigger of an audit, and the attribution behind it.

    ``x`` and ``y`` are the probe examples of the audit. If the trigger is certain, the clients are named
    whose effect on it nothing else explains. If it is only ``planted``, the clients must stand out too; if
    it is only ``suspicious``, they must stand out twice as clearly. Raises HistoryError if no round keeps
    its updates.
    """
    plain = np.asarray(x)[_some(np.asarray(y) != trigger.label)]
    label = np.full(len(plain), trigger.label, np.int64)
    genuine = _genuine(x, y, label)
    stamped = trigger.stamp(plain)
    found = attribute(history, flat, stamped, label, plain=plain, genuine=genuine)
    confirmed = trigger.suspicious and found.cut.strength >= CLEARLY
    named = found.named if trigger.planted or confirmed else ()
    if trigger.certain and lift(flat, history.final_model(), plain, stamped, trigger.label) >= LIFT:
        named = found.named_for_certain_trigger or named
    what = f"taught the trigger for class {trigger.label}"
    confidence = trigger.confidence or DOUBTED
    return _detection(found, found.unexplained, named, what, confidence=confidence), found


def taught_examples(
    history: History, flat: FlatModel, bad: Images, labels: Labels, x: Images, y: Labels
) -> tuple[Detection, Attribution]:
    """Return which clients taught the model to give ``labels`` to the examples ``bad``, and the attribution.

    ``x`` and ``y`` are the server's own examples. A client is named only if each half of the bad examples
    singles clients out too. So one example names nobody, and natural mistakes, which have no common teacher,
    name somebody rarely. Raises HistoryError if no round keeps its updates.
    """
    plain = np.asarray(x)[_some(~np.isin(np.asarray(y), np.unique(labels)))]

    def attribution(rows: slice) -> Attribution:
        some = labels[rows]
        return attribute(history, flat, bad[rows], some, plain=plain, genuine=_genuine(x, y, some))

    found = attribution(slice(None))
    named = found.named if len(bad) > 1 else ()
    if named and any(attribution(slice(i, None, 2)).cut.strength < AGREE for i in (0, 1)):
        named = ()
    what = "taught the given misbehaviour"
    return _detection(found, found.scores, named, what, confidence=MAX_CONFIDENCE), found


def _some(which: NDArray[np.bool_]) -> NDArray[np.intp]:
    places = np.flatnonzero(which)
    return rng_for(0, "taught", len(places)).permutation(places)[:SHOWN]


def _genuine(x: Images, y: Labels, labels: Labels) -> tuple[Images, Labels]:
    """Return examples that rightly have these labels, with the same frequency of each label."""
    with_label = [np.flatnonzero(np.asarray(y) == label) for label in labels]
    chosen = [rows[i % len(rows)] for i, rows in enumerate(with_label) if len(rows)][:SHOWN]
    return np.asarray(x)[chosen], np.asarray(y)[chosen].astype(np.int64)


def _detection(
    found: Attribution, ranking: Matrix64, named: tuple[ClientId, ...], what: str, *, confidence: float
) -> Detection:
    suspicions = {
        client: Suspicion(f"{what}, from round {found.onset(client)} on", min(confidence, MAX_CONFIDENCE))
        for client in named
    }
    scores = {c: max(float(s), 0.0) for c, s in zip(found.clients, ranking, strict=True)}
    strength = max(found.cut.strength, 1.0) if named else min(found.cut.strength, 0.99)
    return Detection("taught", len(found.rounds), scores, suspicions, strength, () if named else (RANKING,))
