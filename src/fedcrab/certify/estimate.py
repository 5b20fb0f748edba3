"""G and L guessed from a history. Guesses: a largest slope seen is not the largest there is.

    G ≈ max ‖u_t^c‖ / (η·K)                            over every honest client of every round
    L ≈ max ‖u_t^c - u_s^c‖ / (η·K·‖M_t - M_s‖)        over honest clients, where updates are kept
    L ≈ max ‖Ḡ_t - Ḡ_s‖ / (η·K·‖M_t - M_s‖)            where they are not; t, s neighbouring kept rounds

Ḡ is the mean of the selected clients, malicious ones among them: the geometry of the ledger has no other. K
is the fewest local steps a round, so that neither guess is too small for that reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fedcrab.certify.assumptions import Assumptions
from fedcrab.history import History
from fedcrab.rollback import Plan
from fedcrab.types import Updates
from fedcrab.vectors import norm


@dataclass(frozen=True, slots=True)
class Estimate:
    """A guessed constant, and how it was guessed."""

    value: float
    method: str


def estimates(plan: Plan, given: Assumptions) -> dict[str, Estimate]:
    """What is not declared and can be guessed; nothing without the rate of local training."""
    if given.rate is None:
        return {}
    scale, found = given.rate * (given.fewest_steps or 1), {}
    if given.gradient is None:
        found["gradient"] = Estimate(_longest(plan) / scale, "longest honest update / (rate · fewest steps)")
    if given.smoothness is None and (slopes := list(_slopes(plan))):
        kept = _keeps_updates(plan.history)
        of = "each honest client's updates" if kept else "the selected clients' mean updates"
        found["smoothness"] = Estimate(
            max(slopes) / scale, f"steepest change of {of} between neighbouring kept rounds"
        )
    if given.rollback_gap is None and np.isfinite(loss := _loss_before(plan)):
        found["rollback_gap"] = Estimate(
            max(loss, 0.0), "loss of the rollback model on the server's data; F* ≥ 0"
        )
    return found


def table(found: dict[str, Estimate], rounded: Any) -> dict[str, Any]:
    """As plain values."""
    return {name: {"value": rounded(e.value), "method": e.method} for name, e in sorted(found.items())}


def _longest(plan: Plan) -> float:
    bad = set(plan.malicious)
    rows = (zip(entry.clients, entry.norms.tolist(), strict=True) for entry in plan.history.rounds)
    return max((length for row in rows for client, length in row if client not in bad), default=0.0)


def _loss_before(plan: Plan) -> float:
    t = plan.rollback_round
    return plan.history.rounds[t - 1].loss if t else plan.history.charter.initial_loss


def _keeps_updates(history: History) -> bool:
    return all(history.rounds[t].updates is not None for t in history.kept)


def _slopes(plan: Plan) -> Iterator[float]:
    history = plan.history
    trained, kept = history.charter.layout.trained(), _keeps_updates(history)
    for s, t in pairwise(history.kept):
        gone = norm(history.model(t).astype(np.float64) - history.model(s), trained)
        if gone > 0:
            changed = _updates_changed(plan, s, t) if kept else _means_changed(history, s, t)
            yield from (change / gone for change in changed)


def _updates_changed(plan: Plan, s: int, t: int) -> Iterator[float]:
    trained = plan.history.charter.layout.trained()
    before, after = (_by_client(plan.history.updates(r).without(plan.malicious)) for r in (s, t))
    for client in before.keys() & after.keys():
        yield norm(after[client].astype(np.float64) - before[client], trained)


def _by_client(updates: Updates) -> dict[str, Any]:
    return dict(zip(updates.clients, updates.vectors, strict=True))


def _means_changed(history: History, s: int, t: int) -> Iterator[float]:
    """‖Ḡ_t - Ḡ_s‖ from round t's geometry, which has Ḡ_s among its points."""
    entry = history.rounds[t]
    members = np.flatnonzero(entry.selected)
    if s in entry.references and len(members):
        shares = entry.examples[members] / entry.examples[members].sum()
        points = [*members.tolist(), len(entry.clients) + entry.references.index(s)]
        yield float(np.linalg.norm(entry.coordinates.combine(points, [*shares.tolist(), -1.0])))
