"""Crab: from the rollback model, replay the kept rounds with renewed and calibrated updates.

    M̃ ← M_{t_j*};  for each kept round t ≥ t_j*:  M̃ ← M̃ + Σ p_c · ‖u_t^c‖ · û^c / ‖û^c‖

over the honest selected clients c of round t, û^c their updates from M̃, p_c by examples (or by the run's
own aggregation rule).

Departs from the paper by three options, all off in preset ``paper`` but for a cap of 100, which is there
against division by almost nothing only:

- ``gap``: the length is the sum of the client's norms over the rounds since the previous replayed one,
  so that the distance of rounds that were not kept is travelled too. A round without the client counts
  as its nearest earlier norm, as nothing where there is none; the first replayed round counts itself alone.
- ``cap``: the ratio of calibration is at most this. Where attackers and honest clients fought, the
  history's norms are inflated, and calibrating to them overshoots.
- ``settle``: the last rounds are aggregated as renewed. Which these are follows from the plan, also
  where one of them turns out to have no honest client.

A renewal of zero is dropped in every round, calibrated or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedcrab.aggregate.buffers import beside_buffers
from fedcrab.aggregate.fedavg import fedavg
from fedcrab.aggregate.rule import Aggregate
from fedcrab.errors import ConfigError
from fedcrab.history import History
from fedcrab.recover.calibrate import SAFE_RATIO, calibrated, check_cap, without_zero
from fedcrab.recover.renewal import check_epochs, renew
from fedcrab.recover.step import Step
from fedcrab.rollback import Plan
from fedcrab.types import ClientId, Fleet
from fedcrab.vectors import Matrix64

CRAB_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "hardened": {"gap": True, "cap": 3.0, "settle": 2},
    "paper": {"gap": False, "cap": SAFE_RATIO, "settle": 0},
}


def crab(
    plan: Plan,
    fleet: Fleet,
    *,
    aggregate: Aggregate | None = None,
    epochs: int | None = None,
    after: Step | None = None,
    gap: bool = True,
    cap: float = 3.0,
    settle: int = 2,
) -> Iterator[Step]:
    """Recover from the plan's rollback model; the defaults are preset ``hardened``.

    ``epochs`` are the clients' local ones (None: as the fleet has them). ``after`` is the last step of a
    recovery that was interrupted; its like goes on from there.
    """
    check_epochs(epochs)
    check_cap(cap)
    if not isinstance(settle, int) or isinstance(settle, bool) or settle < 0:
        raise ConfigError(f"settle must be a whole number of 0 or more, got {settle!r}")
    return _replay(plan, fleet, aggregate or fedavg(), epochs, after, gap, cap, settle)


def _replay(
    plan: Plan,
    fleet: Fleet,
    aggregate: Aggregate,
    epochs: int | None,
    after: Step | None,
    gap: bool,
    cap: float,
    settle: int,
) -> Iterator[Step]:
    layout = plan.history.charter.layout
    rule, lengths = beside_buffers(aggregate, layout), planned_lengths(plan, gap)
    model = after.model if after else plan.history.model(plan.rollback_round)
    for place, (t, clients) in enumerate(plan.replay):
        if after and t <= after.round:
            continue
        renewed = renew(fleet, model, clients, round=t, epochs=epochs)
        if place < len(plan.replay) - settle:
            used = calibrated(renewed, lengths[t], cap=cap, layout=layout)
        else:
            used = without_zero(renewed, layout)
        step = used.applied(model, rule, layout, t)
        yield step
        model = step.model


def planned_lengths(plan: Plan, gap: bool) -> dict[int, dict[ClientId, float]]:
    """The length that each client is calibrated to, in each replayed round."""
    clients, norms = _norms(plan.history)
    rounds = [t for t, _ in plan.replay]
    first = [rounds[0], *(t + 1 for t in rounds[:-1])] if gap else rounds
    return {
        end: dict(zip(clients, norms[begin : end + 1].sum(axis=0).tolist(), strict=True))
        for begin, end in zip(first, rounds, strict=True)
    }


def _norms(history: History) -> tuple[tuple[ClientId, ...], Matrix64]:
    """‖u_t^c‖, a row a round, a column a client; where c took no part, its nearest earlier norm."""
    clients = history.clients
    column = {client: place for place, client in enumerate(clients)}
    norms, latest = np.zeros((len(history.rounds), len(clients))), np.zeros(len(clients))
    for row, entry in zip(norms, history.rounds, strict=True):
        latest[[column[client] for client in entry.clients]] = entry.norms
        row[:] = latest
    return clients, norms
