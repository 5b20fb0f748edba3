"""FedEraser: replay every kept round, with renewed directions and the stored lengths.

    M̃ ← M_0 + Σ p_c · u_0^c;  for each later kept round t:  M̃ ← M̃ + Σ p_c · ‖u_t^c‖ · û^c / ‖û^c‖

The sums are over the honest clients c of the round. û^c are their updates from M̃ after a share ``ratio`` of
the local epochs. The first kept round needs no training: M_0 contains no poison, so the stored updates are
used unchanged.

Liu et al., "FedEraser: Enabling Efficient Client-Level Data Removal from Federated Learning Models", IWQoS
2021. Departs from it: the printed mean divides by the weights twice; here it is a plain weighted mean (or the
run's own rule). The share of the epochs is rounded up. The ratio of calibration is at most ``cap``, to avoid
division by almost zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from fedcrab.aggregate.mean import Aggregate, fedavg, with_buffers
from fedcrab.errors import ConfigError, HistoryError
from fedcrab.history import History
from fedcrab.history.records import RoundRecord
from fedcrab.recover.calibrate import SAFE_RATIO, calibrated, check_cap
from fedcrab.recover.step import RoundUpdates, Step, check_answers, check_epochs, renew
from fedcrab.rollback.decision import Plan
from fedcrab.types import ClientId, Fleet


def federaser(
    plan: Plan,
    fleet: Fleet,
    *,
    aggregate: Aggregate | None = None,
    epochs: int | None = None,
    after: Step | None = None,
    ratio: float = 0.5,
    every: int = 1,
    cap: float = SAFE_RATIO,
) -> Iterator[Step]:
    """Erase the malicious clients. Only their names are taken from the plan.

    ``epochs`` is the number of local epochs in the training; clients run a share ``ratio`` of them (1: all).
    ``every`` thins out the kept rounds: 2 replays every other one. ``cap`` limits the ratio of calibration.
    ``aggregate`` is the aggregation rule (None: the weighted mean). ``after`` is the last step of an
    interrupted recovery, which continues from there.
    """
    check_cap(cap)
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ConfigError(f"every must be a whole number of 1 or more, got {every!r}")
    fewer = fewer_epochs(epochs, ratio)
    check_history(plan.history)
    rounds, rule = plan.history.kept[::every], aggregate or fedavg()
    check_answers(rule, {t: plan.askable(t) if t else plan.honest(t) for t in rounds})
    return _replay(plan, fleet, rule, fewer, after, rounds, cap)


def fewer_epochs(epochs: int | None, ratio: float) -> int | None:
    """Return ⌈ratio × epochs⌉; None, the fleet's own number, if ratio is 1 and epochs is unknown."""
    check_epochs(epochs)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        raise ConfigError(f"ratio must be above 0 and at most 1, got {ratio!r}")
    if epochs is None and ratio < 1:
        raise ConfigError(
            f"federaser asks for {ratio:g} of the local epochs; give epochs, the number used in the training"
        )
    return None if epochs is None else max(1, ceil(ratio * epochs - 1e-9))  # 0.1 × 30 is 3, not 4


def check_history(history: History) -> None:
    """Raise ``HistoryError`` unless round 0 has stored updates; the rest needs norms, which are stored."""
    if history.rounds[0].updates is None or 0 not in history.kept:
        raise HistoryError(
            f"{history.path}: round 0 keeps no update vectors, which federaser starts with; "
            "recover with crab or retrain, or record with Every(n) or Everything()"
        )


def _replay(
    plan: Plan,
    fleet: Fleet,
    aggregate: Aggregate,
    epochs: int | None,
    after: Step | None,
    rounds: Sequence[int],
    cap: float,
) -> Iterator[Step]:
    history, layout = plan.history, plan.history.charter.layout
    rule = with_buffers(aggregate, layout)
    model = after.model if after else history.initial_model()
    for t in rounds:
        if after and t <= after.round:
            continue
        if t == 0:
            used = RoundUpdates(history.updates(0).only(plan.honest(0)))
        else:
            lengths = _norms(history.rounds[t], plan.askable(t))
            renewed = renew(fleet, model, list(lengths), round=t, epochs=epochs)
            used = calibrated(renewed, lengths, cap=cap, layout=layout)
        step = used.applied(model, rule, layout, t)
        yield step
        model = step.model


def _norms(entry: RoundRecord, clients: Sequence[ClientId]) -> dict[ClientId, float]:
    """Return ‖u_t^c‖ of these participants."""
    norms = dict(zip(entry.clients, entry.norms.tolist(), strict=True))
    return {client: norms[client] for client in clients}
