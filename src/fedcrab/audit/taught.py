"""The detector ``taught``: who taught the model what the audit found, or what an operator brought."""

from __future__ import annotations

import numpy as np

from fedcrab.audit.attribution import Attribution, attribute
from fedcrab.audit.flat_model import FlatModel, Images, Labels
from fedcrab.audit.trigger_inversion import Inversion
from fedcrab.detect import Detection, Suspicion
from fedcrab.history import History
from fedcrab.seeds import rng_for
from fedcrab.types import natural

FOUND = 0.7  # clearness from which on clients are named for a trigger that is beyond doubt
DOUBT = 0.4  # ratio of a trigger above which it is not: the real one hardly works, or there is none
BROUGHT = 1.2  # clearness that is then needed, and for what is brought, which may be natural mistakes
SURE = 0.99  # the most that is claimed; docs/forensics.md has how often it was right
SHOWN = 160  # stamped examples: more of them change nothing


def taught_trigger(
    history: History, flat: FlatModel, trigger: Inversion, x: Images, y: Labels
) -> tuple[Detection, Attribution]:
    """Who taught the trigger that an audit found, from the probe examples it was found with."""
    others = np.flatnonzero(np.asarray(y) != trigger.label)
    some = rng_for(0, "taught", len(others)).permutation(others)[:SHOWN]
    plain = np.asarray(x)[some]
    label = np.full(len(plain), trigger.label, np.int64)
    found = attribute(history, flat, trigger.stamp(plain), label, plain=plain)
    what = f"taught the trigger for class {trigger.label}"
    clear = FOUND if trigger.ratio < DOUBT else BROUGHT
    return _detection(found, what, clear=clear, sure=trigger.confidence), found


def taught_examples(
    history: History, flat: FlatModel, bad: Images, labels: Labels, x: Images, y: Labels
) -> tuple[Detection, Attribution]:
    """Who taught the model to give these labels to these examples; ``x``, ``y`` are the server's own."""
    others = np.flatnonzero(~np.isin(np.asarray(y), np.unique(labels)))
    some = rng_for(0, "taught", len(others)).permutation(others)[:SHOWN]
    found = attribute(history, flat, bad, labels, plain=np.asarray(x)[some])
    return _detection(found, "taught what was brought", clear=BROUGHT, sure=SURE), found


def _detection(found: Attribution, what: str, *, clear: float, sure: float) -> Detection:
    named = found.named(clear=clear)
    parts = dict(zip(found.clients, found.parts, strict=True))
    suspicions = {
        client: Suspicion(f"{what}, from round {found.onset(client)} on", min(sure, SURE)) for client in named
    }
    scores = {c: max(float(s), 0.0) for c, s in zip(found.clients, found.scores, strict=True)}
    notes = [] if named else ["Nobody stands out clearly: the scores are a ranking, not names."]
    if near := [c for c in found.clients if c not in named and parts[c] > 0.3] if named else []:
        notes.append(f"Near the line and not named: {', '.join(sorted(near, key=natural))}.")
    strength = found.clearness / clear
    if not named:
        strength = min(strength, 0.99)
    return Detection("taught", len(found.rounds), scores, suspicions, strength, tuple(notes))
