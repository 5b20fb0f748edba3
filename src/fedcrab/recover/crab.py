"""Crab: from the rollback model, replay the kept rounds with renewed and calibrated updates.

    M̃ ← M_{t_j*};  for each kept round t ≥ t_j*:  M̃ ← M̃ + Σ p_c · ‖u_t^c‖ · û^c / ‖û^c‖

The sum is over the honest selected clients c of round t. û^c are their updates from M̃, and p_c is their share
of the examples (or the run's own aggregation rule is used).

Departs from the paper by three options. All are off in preset ``paper``, except for a cap of 100, which only
avoids division by almost zero:

- ``gap``: the length is the sum of the client's norms over the rounds since the previous replayed one, so
  that the rounds that were not kept count too. For a round without the client, its nearest earlier norm
  counts, or 0 if there is none. The first replayed round counts only itself.
- ``cap``: the largest ratio of calibration. While attackers and honest clients pull in opposite directions,
  the history's norms are too large, and calibrating to them overshoots.
- ``settle``: the last rounds are aggregated without calibration. The plan determines which rounds these are,
  even if one of them turns out to have no honest client. With ``everyone`` they ask every honest participant,
  not only the selected ones: if clients' data differ, the selected ones alone lose points of accuracy.

If a rule needs more answers than a round has selected clients (Krum, trimmed mean), every honest participant
of that round is asked. If these are too few as well, the recovery is refused before it starts.

A renewal of zero is dropped in every round, calibrated or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fedcrab.aggregate.mean import Aggregate, fedavg, with_buffers
from fedcrab.errors import ConfigError
from fedcrab.recover.calibrate import SAFE_RATIO, calibrated, check_cap, without_zero
from fedcrab.recover.step import Lengths, Step, check_answers, check_epochs, fewest_answers, renew
from fedcrab.rollback.decision import Plan
from fedcrab.types import ClientId, Fleet

CRAB_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "hardened": {"gap": True, "cap": 3.0, "settle": 2, "everyone": True},
    "paper": {"gap": False, "cap": SAFE_RATIO, "settle": 0, "everyone": False},
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
    everyone: bool = True,
) -> Iterator[Step]:
    """Recover from the plan's rollback model. The defaults are the preset ``hardened``.

    ``aggregate`` is the aggregation rule (None: the weighted mean). ``epochs`` is the number of local epochs
    (None: the fleet's own). ``after`` is the last step of an interrupted recovery, which continues from
    there. ``gap`` adds a client's norms over the rounds that were not kept to the length that it is
    calibrated to. ``cap`` limits the ratio of calibration. The last ``settle`` rounds are not calibrated;
    with ``everyone`` they ask every honest participant instead of the selected ones.
    """
    check_epochs(epochs)
    check_cap(cap)
    if not isinstance(settle, int) or isinstance(settle, bool) or settle < 0:
        raise ConfigError(f"settle must be a whole number of 0 or more, got {settle!r}")
    rule = aggregate or fedavg()
    asking = replace(plan, replay=asked_in(plan, rule, settle if everyone else 0))
    check_answers(rule, dict(asking.replay))
    return _replay(asking, fleet, rule, epochs, after, gap, cap, settle)


def asked_in(plan: Plan, rule: Aggregate, last: int) -> tuple[tuple[int, tuple[ClientId, ...]], ...]:
    """Return the clients that Crab asks in each replayed round: the honest selected ones.

    The ``last`` rounds, and rounds where the rule needs more answers, ask every honest participant.
    """
    needed = fewest_answers(rule, max((len(clients) for _, clients in plan.replay), default=0) + 1)
    settled = len(plan.replay) - last
    return tuple(
        (t, plan.askable(t) if place >= settled or 0 < len(clients) < needed else clients)
        for place, (t, clients) in enumerate(plan.replay)
    )


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
    rule, lengths = with_buffers(aggregate, layout), planned_lengths(plan, gap)
    model = after.model if after else plan.history.model(plan.rollback_round)
    for place, (t, clients) in enumerate(plan.replay):
        if after and t <= after.round:
            continue
        renewed = renew(fleet, model, clients, round=t, epochs=epochs)
        fresh = without_zero(renewed, layout)
        last = place >= len(plan.replay) - settle
        used = fresh if last else calibrated(fresh, lengths[t], cap=cap, layout=layout)
        step = used.applied(model, rule, layout, t)
        if fresh.updates.clients:
            there = plan.history.model(t)
            step = replace(
                step, measured=Lengths.of(fresh.updates, model, step.model, there, layout.trained())
            )
        yield step
        model = step.model


def planned_lengths(plan: Plan, gap: bool) -> dict[int, dict[ClientId, float]]:
    """Return the length that each client is calibrated to, per replayed round that it takes part in.

    This is ‖u_t^c‖; with ``gap``, the sum over the rounds since the previous replayed one, with c's nearest
    earlier norm for rounds without it. Memory grows with the clients that replay, not with all clients.
    """
    rounds, ends = plan.history.rounds, [t for t, _ in plan.replay]
    begins = [ends[0], *(t + 1 for t in ends[:-1])] if gap and ends else ends
    wanted = {client for _, clients in plan.replay for client in clients}
    latest, lengths, done = dict[ClientId, float](), dict[int, dict[ClientId, float]](), 0
    for begin, (end, clients) in zip(begins, plan.replay, strict=True):
        sums = dict.fromkeys(clients, 0.0)
        for entry in rounds[done : end + 1]:
            norms = zip(entry.clients, entry.norms.tolist(), strict=True)
            latest.update((client, norm) for client, norm in norms if client in wanted)
            if entry.index >= begin:
                sums = {client: total + latest.get(client, 0.0) for client, total in sums.items()}
        lengths[end], done = sums, end + 1
    return lengths
