"""Histories for pages: ordinary, hostile, empty, odd."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcrab import History, Rejection, Round, Updates

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "' \" ` $(rm -rf ~) ; && | > x",
    "\\u003c/script\\u003e ${page} {clients} $& @@facts@@",
    "-rf",
    "--out=x",
    'CN=site 3,OU=R&D,O="Acme, Inc.",C=DE',
    ",",
    "@7",
    "\N{PILE OF POO}é٣ \N{GREEK CAPITAL LETTER PHI}",
    "__proto__",
    "constructor",
    "x" * 200,
    "javascript:alert(1)",
]


def hostile_history(path: Path, rounds: int = 8) -> History:
    """Clients whose names are attacks, some turned away for reasons that are attacks too."""
    rng, names = np.random.default_rng(5), tuple(sorted(HOSTILE))
    model = np.zeros(30, np.float32)
    with History.create(path, model, initial_loss=2.3) as history:
        for t in range(rounds):
            vectors = rng.normal(size=(len(names), 30)).astype(np.float32)
            updates = Updates(names, vectors, np.full(len(names), 50.0))
            step = vectors.mean(axis=0)
            away = (Rejection("</style><b>mallory", f"</script><i>because of {t}"),)
            history.record(Round(t, model, updates, step, 2.0 - 0.1 * t, 0.1, away))
            model = model + step
    return History.open(path)


def odd_history(path: Path, *, rounds: int, clients: int, losses: float = 1.0) -> History:
    """As few rounds and clients as wanted, every loss the same, finite or not."""
    rng, names = np.random.default_rng(3), tuple(str(i) for i in range(clients))
    model = np.zeros(4, np.float32)
    with History.create(path, model, initial_loss=losses) as history:
        for t in range(rounds):
            vectors = rng.normal(size=(clients, 4)).astype(np.float32)
            step = vectors.mean(axis=0) if clients else np.zeros(4, np.float32)
            updates = Updates(names, vectors, np.full(clients, 10.0))
            history.record(Round(t, model, updates, step, losses, losses))
            model = model + step
    return History.open(path)
