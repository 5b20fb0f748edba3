"""FedRecover: every round again, most of the honest clients' updates estimated by the server.

    û = u_t + H̃·(ŵ_t - M_t)

u_t the client's stored update, M_t the history's model, ŵ_t the recovered one, H̃ the client's Hessian
as L-BFGS estimates it from its last pairs (Δw = ŵ - M, Δg = exact - stored), each from a round in which
the client computed exactly. With updates in place of gradients H̃ is a negative Hessian times a step size;
the formulas are the same. Exact are: the first ``warm_up`` rounds, every ``correct_every``-th after them,
the last ``tune``, and any client whose estimate exceeds τ in a coordinate, or cannot be made at all.

Cao, Jia, Zhang, Gong, "FedRecover: Recovering from Poisoning Attacks in Federated Learning using
Historical Information", IEEE S&P 2023. Its defaults (20, 10, 5) are for hundreds of rounds; for fewer they
are scaled here: T/10, T/8 and T/20 of T rounds (40 rounds: 4, 5 and 2). Readings, where it leaves room:
the first correction comes ``correct_every`` rounds after the warm-up; a fixed abnormality gives a pair too;
a round in which ŵ = M gives none; a client with fewer pairs than ``pairs`` is estimated from those it has.
Buffers (BatchNorm's statistics and counters) are no part of pairs or τ: an estimate takes them as stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fedcrab.aggregate.buffers import beside_buffers
from fedcrab.aggregate.fedavg import fedavg
from fedcrab.aggregate.rule import Aggregate
from fedcrab.errors import ConfigError, HistoryError
from fedcrab.history import History
from fedcrab.recover.abnormality import largest_usual
from fedcrab.recover.estimate import estimate, learnt, trained_only
from fedcrab.recover.renewal import check_epochs, renew
from fedcrab.recover.step import Harvest, Pairs, Step
from fedcrab.rollback import Plan
from fedcrab.types import ClientId, Fleet, Layout, Rejection, Updates, Vector


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which rounds every honest client computes exactly."""

    rounds: int  # T
    warm_up: int  # the first T_w
    correct_every: int  # every T_c-th after them; 1 is all of them: retraining
    tune: int  # the last T_f

    def is_exact(self, t: int) -> bool:
        """Whether round t is one of them."""
        periodic = (t - self.warm_up + 1) % self.correct_every == 0
        return t < self.warm_up or periodic or t >= self.rounds - self.tune


def fedrecover(
    plan: Plan,
    fleet: Fleet,
    *,
    aggregate: Aggregate | None = None,
    epochs: int | None = None,
    after: Step | None = None,
    warm_up: int | None = None,
    correct_every: int | None = None,
    tune: int | None = None,
    pairs: int = 2,
    tolerance: float = 1e-6,
) -> Iterator[Step]:
    """Recover from the first model on; only who is malicious is taken from the plan.

    ``tolerance`` is the share of a round's honest stored numbers that may exceed τ: 0 fixes the fewest.
    ``epochs`` are the clients' local ones (None: as the fleet has them). ``after`` is the last step of a
    recovery that was interrupted; its like goes on from there. A step holds on to its pairs' vectors.
    """
    check_epochs(epochs)
    _check(pairs, tolerance)
    check_history(plan.history)
    schedule = scheduled(len(plan.history.rounds), pairs, warm_up, correct_every, tune)
    return _recover(plan, fleet, aggregate or fedavg(), epochs, after, schedule, pairs, tolerance)


def scheduled(
    rounds: int, pairs: int, warm_up: int | None, correct_every: int | None, tune: int | None
) -> Schedule:
    """The schedule asked for; what is not given is the paper's, scaled with the rounds."""
    usual = {
        "warm_up": min(20, max(pairs + 1, rounds // 10)),
        "correct_every": min(10, max(2, rounds // 8)),
        "tune": min(5, max(1, rounds // 20)),
    }
    given = {"warm_up": warm_up, "correct_every": correct_every, "tune": tune}
    least = {"warm_up": pairs + 1, "correct_every": 1, "tune": 0}  # fewer leave no pair to estimate with
    for name, value in given.items():
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least[name]:
            raise ConfigError(f"{name} must be a whole number of {least[name]} or more, got {value!r}")
        usual[name] = value
    return Schedule(rounds, **usual)


def _check(pairs: int, tolerance: float) -> None:
    if not isinstance(pairs, int) or isinstance(pairs, bool) or pairs < 1:
        raise ConfigError(f"pairs must be a whole number of 1 or more, got {pairs!r}")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance must be at least 0 and below 1, got {tolerance!r}")


def check_history(history: History) -> None:
    """Every round is estimated from its stored updates."""
    for entry in history.rounds:
        if entry.updates is None or history.contents.state(entry.index) == "dropped":
            raise HistoryError(
                f"{history.path}: round {entry.index} keeps no update vectors, which fedrecover needs; "
                "recover with crab, federaser or retrain, or record with Everything()"
            )


def _recover(
    plan: Plan,
    fleet: Fleet,
    aggregate: Aggregate,
    epochs: int | None,
    after: Step | None,
    schedule: Schedule,
    memory: int,
    tolerance: float,
) -> Iterator[Step]:
    history, layout = plan.history, plan.history.charter.layout
    rule, tau = beside_buffers(aggregate, layout), largest_usual(history, plan.malicious, tolerance)
    model, pairs = (after.model, after.pairs) if after else (history.initial_model(), {})
    for t in range(after.round + 1 if after else 0, schedule.rounds):
        stored = history.updates(t).without(plan.malicious)
        moved = trained_only(model - history.model(t), layout)
        estimates, fixed = _usable(
            {} if schedule.is_exact(t) else _estimates(stored, pairs, moved, tau, layout)
        )
        asked = [client for client in stored.clients if client not in estimates]
        renewed = renew(fleet, model, asked, round=t, epochs=epochs)
        pairs = learnt(pairs, renewed.updates, stored, moved, round=t, memory=memory, layout=layout)
        used = _together(renewed, stored, estimates, fixed)
        step = replace(used.applied(model, rule, layout, t), pairs=pairs)
        yield step
        model = step.model


def _estimates(
    stored: Updates, pairs: Pairs, moved: Vector, tau: float, layout: Layout
) -> dict[ClientId, Vector | str]:
    """Each client's estimate, or why there is none."""
    rows = zip(stored.clients, stored.vectors, strict=True)
    return {client: estimate(row, pairs.get(client, ()), moved, tau, layout) for client, row in rows}


def _usable(
    found: Mapping[ClientId, Vector | str],
) -> tuple[dict[ClientId, Vector], tuple[Rejection, ...]]:
    """The estimates, and the clients to be asked because there is none."""
    fixed = tuple(Rejection(client, reason) for client, reason in found.items() if isinstance(reason, str))
    return {client: row for client, row in found.items() if not isinstance(row, str)}, fixed


def _together(
    renewed: Harvest, stored: Updates, estimates: Mapping[ClientId, Vector], fixed: tuple[Rejection, ...]
) -> Harvest:
    """Exact and estimated updates as one round's."""
    examples = dict(zip(stored.clients, stored.weights.tolist(), strict=True))
    exact = zip(renewed.updates.clients, renewed.updates.vectors, renewed.updates.weights, strict=True)
    answers = {client: (row, float(weight)) for client, row, weight in exact}
    answers |= {client: (row, examples[client]) for client, row in estimates.items()}
    return replace(renewed, updates=Updates.of(answers), fixed=fixed)
