"""A step of a recovery: the model, the clients whose updates made it, and everything unusual.

Also update renewal: honest clients train again, from the recovered model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedcrab.admission import no_updates, printable, screen_updates
from fedcrab.aggregate.mean import Aggregate, shares
from fedcrab.aggregate.server_rule import ServerRule
from fedcrab.errors import ConfigError, HistoryError
from fedcrab.history import History
from fedcrab.types import ClientId, Fleet, Layout, Rejection, ServerState, Updates, Vector
from fedcrab.vectors import squared_norms, stretches


@dataclass(frozen=True, slots=True)
class Capped:
    """A client whose calibration ratio was capped."""

    client: ClientId
    ratio: float  # what ‖u‖ / ‖û‖ would have been


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """What FedRecover learns from one exact answer; zero where a number is not trained."""

    round: int
    moved: Vector  # Δw: the recovered model minus the history's
    changed: Vector  # Δg: the exact update minus the stored one


@dataclass(frozen=True, slots=True)
class ReplayState:
    """What the corrected replay measured up to a step, and what it does next, over trained numbers."""

    next_contact: int  # the round in which clients are asked again
    ask: int  # how many are asked then
    spread: float = 0.0  # how far one client's difference was from c at the last contact
    uneven: float = 0.0  # spread relative to the length of that step
    stored: float = 0.0  # the length of the stored updates' mean then
    doubted: bool = False  # whether answers varied too much at the last contact to rely on stored updates
    ignored: int = 0  # rounds so far in which stored updates were of little use, so that all were asked
    standard_error: float = 0.0  # of c, in a contact round
    missed: float = 0.0  # the error of the estimate at the last contact, beyond that of c
    step_error: float = 0.0  # predicted distance of this step from that of a retraining
    error: float = 0.0  # predicted distance of the model, over all steps
    strayed: float = 0.0  # the part of it that estimates caused
    last_asked: Mapping[ClientId, int] = field(default_factory=dict)  # round in which each was last asked
    contacts: int = 0  # rounds so far in which clients were asked
    answers: int = 0  # of clients in these rounds; without those in which stored updates were ignored
    nearer: float = 0.0  # two sums over the contacts, from which the share of each estimate follows
    apart: float = 0.0


Pairs = Mapping[ClientId, tuple[Pair, ...]]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Three lengths of a step, over the trained numbers, that a certificate needs."""

    mean: float  # ‖Σ p_c·û_c‖: the mean of the fresh answers, before calibration
    strayed: float  # ‖step - Σ p_c·û_c‖: how much calibration changed it
    apart: float  # ‖x_t - M_t‖: how far the recovered model was from the history's

    @classmethod
    def of(
        cls, fresh: Updates, before: Vector, after: Vector, history: Vector, trained: Sequence[slice]
    ) -> Lengths:
        """Measure the lengths in float64."""
        squares, weights = np.zeros(3), shares(fresh.weights)
        for part in stretches(trained, len(fresh.clients)):
            start = before[part].astype(np.float64)
            mean = weights @ fresh.vectors[:, part].astype(np.float64)
            rows = (mean, after[part] - start - mean, start - history[part])
            squares += [float(row @ row) for row in rows]
        return cls(*np.sqrt(squares).tolist())


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One replayed round, with all that a recovery needs to continue after it."""

    round: int  # of the history
    model: Vector = field(repr=False)  # the recovered model after it
    clients: tuple[ClientId, ...] = ()  # whose updates were aggregated
    examples: tuple[float, ...] = ()  # of each
    lengths: tuple[float, ...] = ()  # ‖·‖ of each update as aggregated
    renewed: tuple[float, ...] = ()  # ‖û‖ of each before calibration; empty if none was calibrated
    asked: tuple[ClientId, ...] = ()  # the clients that were asked to compute
    dropped: tuple[Rejection, ...] = ()  # clients without a usable answer, and why
    capped: tuple[Capped, ...] = ()
    fixed: tuple[Rejection, ...] = ()  # clients asked because their estimate was unusable (FedRecover)
    skipped: str = ""  # why the model did not change, if it did not
    pairs: Pairs = field(default_factory=dict, repr=False)  # what FedRecover and replay continue with
    measured: Lengths | None = None  # for the certificate of a crab
    replay: ReplayState | None = None  # what the corrected replay measured and continues with
    server: ServerState | None = field(default=None, repr=False)  # of a server's own rule, after the step
    record: Mapping[str, Any] | None = None  # for the certificate of a replay: a ReplayRecord as plain values

    @property
    def exact(self) -> tuple[ClientId, ...]:
        """The clients whose updates were computed for this step."""
        return tuple(c for c in self.clients if c in self._answered)

    @property
    def estimated(self) -> tuple[ClientId, ...]:
        """The clients whose updates came from the history, corrected or not, without asking them."""
        return tuple(c for c in self.clients if c not in self._answered)

    @property
    def _answered(self) -> frozenset[ClientId]:
        return frozenset(self.asked) - {r.client for r in self.dropped}

    @property
    def path(self) -> float:
        """Σ p_c·length: the weighted mean cannot have moved the model further than this."""
        return float(shares(np.array(self.examples)) @ np.array(self.lengths)) if self.clients else 0.0

    def to_table(self) -> dict[str, Any]:
        """Return plain values, without the vectors."""
        return {
            "round": self.round,
            "clients": list(self.clients),
            "examples": list(self.examples),
            "lengths": list(self.lengths),
            "renewed": list(self.renewed),
            "asked": list(self.asked),
            "dropped": [[r.client, r.reason] for r in self.dropped],
            "capped": [[c.client, c.ratio] for c in self.capped],
            "fixed": [[r.client, r.reason] for r in self.fixed],
            "skipped": self.skipped,
            **({} if self.measured is None else {"measured": asdict(self.measured)}),
            **({} if self.replay is None else {"replay": asdict(self.replay)}),
            **({} if self.record is None else {"record": dict(self.record)}),
        }

    @classmethod
    def from_table(
        cls, table: Mapping[str, Any], model: Vector, pairs: Pairs, server: ServerState | None = None
    ) -> Step:
        """Return the step that :meth:`to_table` wrote."""
        return cls(
            round=table["round"],
            model=model,
            clients=tuple(table["clients"]),
            examples=tuple(table["examples"]),
            lengths=tuple(table["lengths"]),
            renewed=tuple(table.get("renewed", ())),
            asked=tuple(table["asked"]),
            dropped=tuple(Rejection(*r) for r in table["dropped"]),
            capped=tuple(Capped(*c) for c in table["capped"]),
            fixed=tuple(Rejection(*r) for r in table["fixed"]),
            skipped=table["skipped"],
            pairs=pairs,
            measured=Lengths(**table["measured"]) if "measured" in table else None,
            replay=ReplayState(**table["replay"]) if "replay" in table else None,
            server=server,
            record=table.get("record"),
        )


@dataclass(frozen=True, slots=True)
class RoundUpdates:
    """The updates of one replayed round, ready to be aggregated, and where they came from."""

    updates: Updates
    asked: tuple[ClientId, ...] = ()
    dropped: tuple[Rejection, ...] = ()
    capped: tuple[Capped, ...] = ()
    fixed: tuple[Rejection, ...] = ()
    renewed: tuple[float, ...] = ()  # ‖û‖ of each update before calibration

    def applied(self, model: Vector, rule: Aggregate, layout: Layout, round: int) -> Step:
        """Return the step to M̃ + aggregate, or to M̃ if there is nothing to aggregate."""
        updates = self.updates
        moved, why = self._aggregated(model, rule, round)
        return Step(
            round=round,
            model=model if moved is None else model + moved,
            clients=updates.clients,
            examples=tuple(updates.weights.tolist()),
            lengths=tuple(np.sqrt(squared_norms(updates.vectors, layout.trained())).tolist()),
            renewed=self.renewed,
            asked=self.asked,
            dropped=self.dropped,
            capped=self.capped,
            fixed=self.fixed,
            skipped=why,
            server=rule.state() if isinstance(rule, ServerRule) else None,
        )

    def _aggregated(self, model: Vector, rule: Aggregate, round: int) -> tuple[Vector | None, str]:
        """Return the aggregate, or why there is none."""
        updates = self.updates
        if not updates.clients:
            return None, self._nobody()
        if not isinstance(rule, ServerRule):
            try:
                return rule(updates.vectors, updates.weights), ""
            except ConfigError as error:  # some did not answer; how many can is checked before the recovery
                return None, f"too few answers for the aggregation rule: {error}"
        made = rule.step(model, updates, round=round)
        return (None, made) if isinstance(made, str) else (made, "")

    def _nobody(self) -> str:
        return "no usable answer came" if self.asked else "the round has no honest client"


MOST_TRIED = 1000  # answers that are tried to find how many a rule needs


def renew(
    fleet: Fleet, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None
) -> RoundUpdates:
    """Train these clients from ``model``; unusable answers are dropped, with the reason.

    ``round`` is the history's round, so that clients that draw by round draw the same batches again.
    """
    if not clients:
        return RoundUpdates(no_updates(len(model)))
    answers = fleet.train(model, clients, round=round, epochs=epochs)
    updates, rejected = screen_updates(answers.only(clients), size=len(model), known=frozenset(clients))
    dropped = (*rejected, *_strangers(answers, clients), *_missing(answers, clients))
    return RoundUpdates(updates, tuple(clients), tuple(sorted(dropped, key=lambda r: r.client)))


def _strangers(answers: Updates, clients: Sequence[ClientId]) -> list[Rejection]:
    strangers = {c for c in answers.clients if c not in clients}
    return [Rejection(printable(c), "was not asked in this round") for c in strangers]


def _missing(answers: Updates, clients: Sequence[ClientId]) -> list[Rejection]:
    return [Rejection(c, "did not answer") for c in clients if c not in answers.clients]


def check_epochs(epochs: int | None) -> None:
    """Raise ``ConfigError`` unless epochs is a count, or None for the fleet's own."""
    if epochs is not None and (not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1):
        raise ConfigError(f"epochs must be a whole number of 1 or more, or None, got {epochs!r}")


def check_count(name: str, value: int) -> None:
    """Raise ``ConfigError`` unless this is a number of rounds or clients."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be a whole number of 1 or more, got {value!r}")


def check_updates(history: History, method: str) -> None:
    """Raise ``HistoryError`` unless the history has the update vectors of every round."""
    for entry in history.rounds:
        if not history.contents.has_updates(entry.index):
            raise HistoryError(
                f"{history.path}: round {entry.index} keeps no update vectors, which {method} needs; "
                "recover with crab, federaser or retrain, or record with Compact() or Everything()"
            )


def check_answers(rule: Aggregate, clients_by_round: Mapping[int, Sequence[ClientId]]) -> None:
    """Refuse a rule that needs more answers than a round can have, before any client is asked."""
    needed = fewest_answers(rule, max(map(len, clients_by_round.values()), default=0) + 1)
    few = [t for t, clients in clients_by_round.items() if 0 < len(clients) < needed]
    if few:
        needed = fewest_answers(rule, MOST_TRIED)
        raise ConfigError(
            f"the aggregation rule needs at least {needed} answers, but round {few[0]} can have only "
            f"{len(clients_by_round[few[0]])}, because malicious clients are not asked; use another rule"
        )


def fewest_answers(rule: Aggregate, most: int) -> int:
    """Return the least number of updates that the rule accepts; ``most`` + 1 if it is more than ``most``.

    Found by trying: Krum and the trimmed mean refuse fewer than they need. A server's own rule states it.
    """
    if isinstance(rule, ServerRule):
        return min(rule.fewest, most + 1)
    for count in range(1, most + 1):
        try:
            rule(np.arange(count, dtype=np.float32)[:, None], np.ones(count))
        except ConfigError:
            continue
        return count
    return most + 1
